"""The runs of a configuration as a table: `multicard run CONFIG --dry-run`."""

from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.core.text import counted

if TYPE_CHECKING:
    from multicard.archive.matrix import Matrix
    from multicard.experiment.estimate import Cost
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import Run


def print_runs(matrix: "Matrix", profile: Path | None = None) -> None:
    """Print the run table: what would run, in which order, what cannot and why, and what it costs.

    `profile`: Snakemake's; with one for Slurm, runs that the cluster would refuse are marked.
    """
    from rich.table import Table

    from multicard.cli._console import console
    from multicard.core.terminal import plain
    from multicard.experiment.estimate import estimate_cost
    from multicard.profilers import PROFILERS

    experiment = matrix.experiment
    refused = _refused(profile, matrix)
    unique, machine = matrix.runs, matrix.machine
    possible = {n: run for n, run in unique.items() if run.unsupported_reason(machine.hypothetical()) is None}
    memory = {name: _memory_needed(run, machine) for name, run in possible.items()}
    estimated = any(memory.values())
    table = Table("Scenario", "Order", "Run", "Here", *(["Memory per GPU"] if estimated else []))
    numbers = {run: number for number, run in enumerate(matrix.planned(), start=1)}
    places = {run: number for number, run in enumerate(matrix.order)}
    above: set[str] = set()
    for scenario, expanded in matrix.scenarios.items():
        runs = sorted(expanded, key=lambda run: places[run.id])
        for number, run in enumerate(runs):
            reason = matrix.reasons[run.id]
            here = reason or "runs"
            if run.id in matrix.measured:
                here = "measured elsewhere"
            here = refused.get(run.id, here)
            if reason is None and run.id in above:
                here += ", shared with a scenario above"
            workers = run.parameters.loader_workers
            if reason is None and workers > machine.cpus:
                here += f", but its {workers} loader workers share {machine.cpus} CPUs"
            needed = [memory.get(run.id, "")] if estimated else []
            place = str(numbers.get(run.id, ""))
            table.add_row(scenario if number == 0 else "", place, run.id, plain(here), *needed)
        above |= {run.id for run in runs}
        table.add_section()
    terminal = console()
    terminal.print(table)
    cannot_run = matrix.not_runnable()
    programs = [n if n in machine.profilers else f"no {n}" for n, profiler in PROFILERS.items() if profiler.program]
    terminal.print(
        f"{counted(len(unique), 'run')}, {len(matrix.planned())} can run here"
        f"{f', {len(matrix.measured)} measured elsewhere' if matrix.measured else ''} "
        f"({f'{machine.nodes} nodes, each with ' if machine.nodes > 1 else ''}"
        f"{counted(machine.cpus, 'CPU')}, {counted(machine.gpus, 'GPU')}, {', '.join(programs)})",
        highlight=False,
    )
    for reason, count in Counter(cannot_run.values()).most_common():
        terminal.print(plain(f"{count} cannot: {reason}"))
    if refused:
        terminal.print(f"{counted(len(refused), 'run')} that Slurm refuses for memory", highlight=False)
    if unlikely := sum(run.exceeds_memory(machine) for run in possible.values()):
        terminal.print(
            f"{counted(unlikely, 'run')} unlikely to fit into the memory of a GPU (outcome out_of_memory)",
            highlight=False,
        )
    for name, model in experiment.models.items():
        if model.missing_files():
            terminal.print(f"download the weights of {name}: {model.download_command}", highlight=False, soft_wrap=True)
    kinds = {run.parameters.workload for run in possible.values() if run.parameters.device == "cuda"}
    if estimate := _cost(estimate_cost(possible.values(), experiment.time_limit_min, machine.gpus), kinds):
        terminal.print(estimate, highlight=False)


def _refused(profile: Path | None, matrix: "Matrix") -> dict[str, str]:
    """Runs that the cluster of a profile would refuse, each with the reason."""
    if profile is None:
        return {}
    from multicard.experiment.load import read_profile
    from multicard.machine.slurm import refused

    values = read_profile(profile)
    return refused(values, matrix) if values.get("executor") == "slurm" else {}


def _cost(cost: "Cost", kinds: Set[str]) -> str:
    """What an experiment costs, and what the estimate assumes of workloads; nothing without runs on GPUs."""
    from multicard.experiment.workload import WORKLOADS

    lines = []
    if cost.wall_h:
        parts = ", ".join(f"{name} {hours:.2g} h" for name, hours in cost.parts_h.items() if hours)
        lines += [
            f"about {cost.wall_h:.3g} h, one run after another ({parts})",
            f"about {cost.node_gpu_h:.3g} GPU hours of whole nodes, {cost.gpu_h:.3g} of the GPUs in use",
        ]
    if cost.waiting:
        lines.append(f"{counted(cost.waiting, 'run')} likely to wait for their loader")
    if cost.unknown:
        lines.append(
            f"not counted: {counted(cost.unknown, 'run')} of unknown length (of scripts, or on data of unknown size)"
        )
    if lines:
        assumed = "; ".join(
            f"{name}: {work.assumption}" for name, work in WORKLOADS.items() if name in kinds and work.assumption
        )
        lines += [f"(assumed: {assumed})"] if assumed else []
    return "\n".join(lines)


def _memory_needed(run: "Run", machine: "Machine") -> str:
    """Estimated memory of a run on GPUs, beside what a GPU has; nothing where there is no estimate."""
    needed = run.device_memory_bytes() if run.parameters.device == "cuda" else None
    if needed is None:
        return ""
    from multicard.core.units import BYTES, with_unit

    there = machine.gpu_memory_bytes
    text = f"about {with_unit(needed, BYTES)}"
    if there is None:
        return text
    return f"{text} of {with_unit(there, BYTES)}" + (": unlikely to fit" if run.exceeds_memory(machine) else "")
