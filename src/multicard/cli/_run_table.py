"""The runs of a configuration as a table: `multicard run CONFIG --dry-run`."""

from collections import Counter
from typing import TYPE_CHECKING

from multicard.cli._console import say
from multicard.core.text import counted

if TYPE_CHECKING:
    from multicard.archive.matrix import Matrix
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import Run


def print_runs(matrix: "Matrix") -> None:
    """Print the run table: what would run, in which order, what cannot and why, and what it costs."""
    from rich.table import Table

    from multicard.core.terminal import plain
    from multicard.experiment.estimate import estimate_cost
    from multicard.profilers import PROFILERS

    unique, machine = matrix.runs, matrix.machine
    possible = {n: run for n, run in unique.items() if run.unsupported_reason(machine.hypothetical()) is None}
    memory = {name: _memory_needed(run, machine) for name, run in possible.items()}
    table = Table("Scenario", "Order", "Run", "Here", *(["Memory per GPU"] if any(memory.values()) else []))
    numbers = {run: number for number, run in enumerate(matrix.planned(), start=1)}
    places = {run: number for number, run in enumerate(matrix.order)}
    for scenario, expanded in matrix.scenarios.items():
        for number, run in enumerate(sorted(expanded, key=lambda run: places[run.id])):
            here = matrix.reasons[run.id] or "runs"
            if run.id in matrix.measured:
                here = "measured elsewhere"
            needed = [memory.get(run.id, "")] if any(memory.values()) else []
            name, place = scenario if number == 0 else "", str(numbers.get(run.id, ""))
            table.add_row(name, place, run.id, plain(here), *needed)
        table.add_section()
    programs = [n if n in machine.profilers else f"no {n}" for n, profiler in PROFILERS.items() if profiler.program]
    has = [counted(machine.cpus, "CPU"), counted(machine.gpus, "GPU"), *programs]
    lines = [
        f"{counted(len(unique), 'run')}, {len(matrix.planned())} can run here"
        f"{f', {len(matrix.measured)} measured elsewhere' if matrix.measured else ''} "
        f"({f'{machine.nodes} nodes, each with ' if machine.nodes > 1 else ''}{', '.join(has)})"
    ]
    reasons = Counter(matrix.not_runnable().values())
    lines += [f"{count} cannot: {reason}" for reason, count in reasons.most_common()]
    if unlikely := sum(run.exceeds_memory(machine) for run in possible.values()):
        lines.append(f"{counted(unlikely, 'run')} unlikely to fit into the memory of a GPU (outcome out_of_memory)")
    lines += [
        f"download the weights of {name}: {model.download_command}"
        for name, model in matrix.experiment.models.items()
        if model.missing_files()
    ]
    cost = estimate_cost(possible.values(), matrix.experiment.time_limit_min, machine.gpus)
    if cost.wall_h:
        unknown = f"; not counted: {counted(cost.unknown, 'run')} of unknown length" if cost.unknown else ""
        hours = f"{cost.wall_h:.3g} h, one run after another, {cost.node_gpu_h:.3g} GPU hours of whole nodes"
        lines.append(f"about {hours}{unknown}")
    say(table, *lines)


def _memory_needed(run: "Run", machine: "Machine") -> str:
    """Estimated memory of a run on GPUs, beside what a GPU has; nothing where there is no estimate."""
    from multicard.core.units import BYTES, with_unit

    needed, there = run.device_memory_bytes() if run.parameters.device == "cuda" else None, machine.gpu_memory_bytes
    if needed is None:
        return ""
    text = f"about {with_unit(needed, BYTES)}" + (f" of {with_unit(there, BYTES)}" if there else "")
    return text + (": unlikely to fit" if run.exceeds_memory(machine) else "")
