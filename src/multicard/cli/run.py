"""Run a configuration in the current folder and print its results, or list its runs."""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import MEASURE, Command, add_configuration, add_profile
from multicard.cli._console import say
from multicard.core.errors import UserError
from multicard.core.terminal import plain
from multicard.core.text import counted

SOME_FAILED = 3  # exit code
# What `--dry-run` says of a run.
WOULD_RUN, DONE, FAILED, ELSEWHERE, CANNOT = "would run", "done", "failed before", "measured elsewhere", "cannot run"

if TYPE_CHECKING:
    from rich.table import Table

    from multicard.archive.matrix import Matrix
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import Run
    from multicard.runs.parameters import JobParameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration."""
    add_configuration(parser)
    add_profile(parser, "to run by")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs, their order and cost, and why some cannot run here"
    )
    add_retry(parser)
    parser.epilog = "With options of Snakemake after -- (such as -- --dry-run) all output is Snakemake's."


def add_retry(parser: argparse.ArgumentParser) -> None:
    """Add what becomes of runs that fail."""
    parser.add_argument("--retry-failed", action="store_true", help="run again what did not complete")


def run(arguments: argparse.Namespace) -> None:
    """Run an experiment in the current folder, and print its results."""
    from multicard.archive.matrix import Matrix
    from multicard.cli._pipeline import run_pipeline
    from multicard.experiment.load import read_experiment

    experiment = read_experiment(arguments.config, arguments.profile)
    if arguments.trailing and not arguments.dry_run:
        sys.exit(0 if run_pipeline(arguments.config, arguments.profile, arguments.trailing) else 1)
    matrix = Matrix.plan(experiment)
    if arguments.dry_run:
        print_runs(matrix, arguments.retry_failed)
        return
    matrix = prepare_undecided(matrix, arguments.config, arguments.profile)
    if arguments.profile is None:
        check_start(matrix)
    run_and_print(matrix, arguments.config, arguments.profile, arguments.retry_failed)


def prepare_undecided(matrix: "Matrix", config: Path, profile: Path | None) -> "Matrix":
    """Prepare the data sets that decide which runs can run, and plan again; print what cannot run for its data.

    What a run needs of its data is then known before the first run starts, and not after each has failed.
    Exits with 1 if they cannot be prepared.
    """
    from multicard.archive.matrix import Matrix
    from multicard.cli._pipeline import run_pipeline

    undecided = matrix.undecided_data()
    if not undecided:
        return matrix
    print("prepare data sets, whose size decides which runs can run", flush=True)
    if not run_pipeline(config, profile, targets=undecided):
        sys.exit(1)
    planned = Matrix.plan(matrix.experiment)
    new_reasons = Counter(why for run, why in planned.not_runnable().items() if matrix.reasons[run] is None)
    say(*(f"{counted(count, 'run')} cannot run: {why}" for why, count in new_reasons.items()))
    return planned


def check_start(matrix: "Matrix", planning: bool = False, by_option: bool = False) -> None:
    """Refuse an experiment that has measured nothing yet and of which no run can start on this machine.

    `planning`: that this machine has too few devices is no reason. `by_option`: whether options state the runs, rather
    than a file that the user wrote.

    Raises `UserError` with a line for each reason.
    """
    from multicard.core.files import unwritable
    from multicard.core.layout import RUN

    if not planning and (problem := unwritable(Path(".snakemake"))):
        raise UserError(
            f"cannot write to this folder, where Snakemake keeps its state: {problem}; run it from another one"
        )
    folder = Path(matrix.experiment.results) / "runs"
    measured = any((folder / run / RUN).exists() for run in matrix.runs)
    if measured or matrix.experiment.cluster:
        return
    planned = [matrix.runs[run].parameters for run in matrix.planned()]
    if planning and not planned:
        return
    refused = []
    for p in planned:
        reason = _refusal(p)
        if reason is None:
            return
        refused.append(reason)
    processes = f"; {'--device cpu' if by_option else 'device: cpu'} runs it on CPU processes"
    for run, reason in matrix.not_runnable().items():
        lacks_gpu = matrix.runs[run].parameters.device == "cuda" and matrix.machine.gpus == 0
        refused.append(f"cannot run here: {reason}{processes if lacks_gpu else ''}")
    raise UserError(*dict.fromkeys(refused))


def _refusal(p: "JobParameters") -> str | None:
    """Return why a run cannot start here, by its workload or by the profiler that is stated; None where it can."""
    from multicard.core.reasons import describe_reason
    from multicard.experiment.workload import WORKLOADS
    from multicard.launch.profiler_choice import choose_profiler

    work = WORKLOADS[p.workload]
    if reason := work.refusal(p):
        return describe_reason(reason)
    try:
        if p.profiler != "auto":
            launching = work.launching(p)
            choose_profiler(p.profiler, p.device, launching.hidden_from_profilers, launching.interpreter)
    except UserError as error:
        return str(error)
    return None


def run_and_print(matrix: "Matrix", config: Path, profile: Path | None = None, retry_failed: bool = False) -> None:
    """Run an experiment, which `config` states, and print its results.

    Exits with 1 unless all was made and a run completed, with `SOME_FAILED` where others did not.
    """
    from multicard.cli._pipeline import run_pipeline
    from multicard.core.layout import RUN
    from multicard.experiment.read_run import read_run_if_any

    folder = Path(matrix.experiment.results) / "runs"
    if retry_failed:
        for run in matrix.planned():
            record = read_run_if_any(folder / run)
            if record is not None and not record.completed:
                (folder / run / RUN).unlink()
    has_made_all = run_pipeline(config, profile)
    records = [read_run_if_any(folder / run) for run in matrix.runnable()]
    ended = {record.outcome if record else None for record in records}
    if not has_made_all or "completed" not in ended:
        sys.exit(1)
    if ended != {"completed"}:
        sys.exit(SOME_FAILED)


def print_runs(matrix: "Matrix", retry_failed: bool = False) -> None:
    """Print the run table: what would run, in which order, what is done, what cannot run and why, and what it costs."""
    machine = matrix.machine
    states = {run: _state(matrix, run, retry_failed) for run in matrix.runs}
    # Runs that some machine can run.
    possible = {
        name: run for name, run in matrix.runs.items() if run.unsupported_reason(machine.hypothetical()) is None
    }
    lines = [_summary(matrix, states)]
    if FAILED in states.values():
        lines.append("--retry-failed runs again what failed before")
    reasons = Counter(matrix.not_runnable().values())
    lines += [f"{count} cannot: {reason}" for reason, count in reasons.most_common()]
    if unlikely := sum(run.exceeds_memory(machine) for run in possible.values()):
        lines.append(f"{counted(unlikely, 'run')} unlikely to fit into the memory of a GPU (outcome out_of_memory)")
    for name, model in matrix.experiment.models.items():
        if model.missing_files():
            lines.append(f"download the weights of {name}: {model.download_command}")
    # What cannot run here may run on another machine.
    lines += _costs(matrix, [run for name, run in possible.items() if states[name] in (WOULD_RUN, CANNOT)])
    say(_table(matrix, states, possible), *lines)


def _table(matrix: "Matrix", states: Mapping[str, str], possible: Mapping[str, "Run"]) -> "Table":
    """Return a table of each scenario's runs, in their order, with the memory that the possible ones need."""
    from rich.table import Table

    memory = {name: _memory_needed(run, matrix.machine) for name, run in possible.items()}
    has_memory = any(memory.values())
    table = Table("Scenario", "Order", "Run", "Here", *(["Memory per GPU"] if has_memory else []))
    # Runs that cannot run here have a place among the others, and no number.
    positions = {run: position for position, run in enumerate(matrix.order)}
    numbers = {run: number for number, run in enumerate(matrix.planned(), start=1)}
    for scenario, runs in matrix.scenarios.items():
        name = scenario
        for run in sorted(runs, key=lambda run: positions[run.id]):
            state = matrix.reasons[run.id] or states[run.id]
            needed = [memory.get(run.id, "")] if has_memory else []
            table.add_row(name, str(numbers.get(run.id, "")), run.id, plain(state), *needed)
            name = ""
        table.add_section()
    return table


def _summary(matrix: "Matrix", states: Mapping[str, str]) -> str:
    """Return how many runs are in which state, and what the machine has that they are planned for."""
    from multicard.profilers import PROFILERS

    machine = matrix.machine
    counts = Counter(states.values())
    parts = [f"{counts[state]} {state}" for state in (WOULD_RUN, DONE, FAILED, ELSEWHERE) if counts[state]]
    if not counts[WOULD_RUN]:
        parts.insert(0, "none would run")
    with_programs = [name for name, profiler in PROFILERS.items() if profiler.program]
    programs = [name if name in machine.profilers else f"no {name}" for name in with_programs]
    equipment = ", ".join([counted(machine.cpus, "CPU"), counted(machine.gpus, "GPU"), *programs])
    nodes = f"{machine.nodes} nodes, each with " if machine.nodes > 1 else ""
    return f"{counted(len(states), 'run')}: {', '.join(parts)} ({nodes}{equipment})"


def _costs(matrix: "Matrix", runs: Sequence["Run"]) -> list[str]:
    """Return what runs on GPUs cost, in a line; none where no run has a known length."""
    from multicard.experiment.estimate import estimate_cost

    cost = estimate_cost(runs, matrix.experiment.time_limit_min, matrix.machine.gpus)
    if not cost.wall_h:
        return []
    hours = f"{cost.wall_h:.3g} h, one run after another, {cost.node_gpu_h:.3g} GPU hours of whole nodes"
    unknown = f"; not counted: {counted(cost.unknown, 'run')} of unknown length" if cost.unknown else ""
    return [f"about {hours}{unknown}"]


def _state(matrix: "Matrix", run: str, retry_failed: bool) -> str:
    """Return what the pipeline would do about a run."""
    if run in matrix.measured:
        return ELSEWHERE
    if matrix.reasons[run]:
        return CANNOT
    from multicard.experiment.read_run import read_run_if_any

    record = read_run_if_any(Path(matrix.experiment.results) / "runs" / run)
    if record is None:
        return WOULD_RUN
    if record.completed:
        return DONE
    return WOULD_RUN if retry_failed else FAILED


def _memory_needed(run: "Run", machine: "Machine") -> str:
    """Return the estimated memory of a run on GPUs, beside what a GPU has; empty where there is no estimate."""
    from multicard.core.units import BYTES, with_unit

    needed = run.device_memory_bytes() if run.parameters.device == "cuda" else None
    if needed is None:
        return ""
    text = f"about {with_unit(needed, BYTES)}"
    if machine.gpu_memory_bytes:
        text += f" of {with_unit(machine.gpu_memory_bytes, BYTES)}"
    if run.exceeds_memory(machine):
        text += ": unlikely to fit"
    return text


COMMAND = Command(MEASURE, "multicard run config/mine.yaml", add_arguments, run, "[-- SNAKEMAKE-OPTION ...]")
