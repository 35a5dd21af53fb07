"""Run a configuration in the current folder and print its results, or list its runs."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import MEASURE, Command, add_configuration, add_profile
from multicard.cli._console import say
from multicard.core.errors import UserError
from multicard.core.terminal import plain
from multicard.core.text import counted

SOME_FAILED = 3  # exit code if some runs completed and others did not
# States of a run in the table of `--dry-run`.
WOULD_RUN, DONE, FAILED, ELSEWHERE, CANNOT = "would run", "done", "failed before", "measured elsewhere", "cannot run"

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from multicard.config.plan import Plan
    from multicard.config.runs import Run
    from multicard.programs.machine import Machine
    from multicard.runs.parameters import JobParameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the configuration, and how to run it."""
    add_configuration(parser)
    add_profile(parser, "to run with")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs, their order and cost, and why some cannot run here"
    )
    add_retry(parser)
    parser.epilog = "With options of Snakemake after -- (such as -- --dry-run), all output is Snakemake's."


def add_retry(parser: argparse.ArgumentParser) -> None:
    """Add the option --retry-failed."""
    parser.add_argument("--retry-failed", action="store_true", help="repeat runs that did not complete")


def run(arguments: argparse.Namespace) -> None:
    """Run an experiment in the current folder, and print its results; with --dry-run, only list its runs.

    Options of Snakemake after `--` are passed on, and Snakemake then prints its own output.
    """
    from multicard.cli._pipeline import run_pipeline
    from multicard.config.load import read_experiment
    from multicard.config.plan import Plan
    from multicard.workflow.report_source import refuse_own_files, stated_path

    experiment = read_experiment(arguments.config, arguments.profile)
    if arguments.trailing and not arguments.dry_run:
        sys.exit(0 if run_pipeline(arguments.config, arguments.profile, arguments.trailing) else 1)
    refuse_own_files(Path(experiment.results), stated_path(arguments.config, Path.cwd()))
    plan = Plan.make(experiment)
    if arguments.dry_run:
        print_runs(plan, arguments.config, arguments.retry_failed)
        return
    plan = prepare_undecided(plan, arguments.config, arguments.profile)
    if arguments.profile is None:
        check_start(plan)
    run_and_print(plan, arguments.config, arguments.profile, arguments.retry_failed)


def prepare_undecided(plan: "Plan", config: Path, profile: Path | None) -> "Plan":
    """Prepare the data sets whose size decides which runs can run; return a new plan, and print what it excludes.

    So a run whose data set is too small is excluded before the first run starts, instead of failing. If there are no
    such data sets, return the plan unchanged. Exits with 1 if they cannot be prepared.
    """
    from multicard.cli._pipeline import run_pipeline
    from multicard.config.plan import Plan

    undecided = plan.undecided_data()
    if not undecided:
        return plan
    print("prepare data sets, whose size decides which runs can run", flush=True)
    if not run_pipeline(config, profile, targets=undecided):
        sys.exit(1)
    planned = Plan.make(plan.experiment)
    new_reasons = Counter(why for run, why in planned.not_runnable().items() if plan.reasons[run] is None)
    say(*(f"{counted(count, 'run')} cannot run: {why}" for why, count in new_reasons.items()))
    return planned


def check_start(plan: "Plan", planning: bool = False, by_option: bool = False) -> None:
    """Raise `UserError`, with a line for each reason, if no run of an experiment can start on this machine.

    An experiment on a cluster, or one that has a recorded run already, is not refused for this. Unless `planning`, the
    experiment is refused in any case if this folder cannot be written.

    `planning`: True if runs are only listed. Then an experiment without any run that this machine can run, such as for
    too few devices, is not refused. `by_option`: True if options of the command line state the runs, False if a
    configuration file does.
    """
    from multicard.core.files import unwritable
    from multicard.core.layout import RUN

    if not planning and (problem := unwritable(Path(".snakemake"))):
        raise UserError(
            f"cannot write to this folder, where Snakemake keeps its state: {problem}; run it from another one"
        )
    folder = Path(plan.experiment.results) / "runs"
    measured = any((folder / run / RUN).exists() for run in plan.runs)
    if measured or plan.experiment.cluster:
        return
    planned = [plan.runs[run].parameters for run in plan.planned()]
    if planning and not planned:
        return
    refused = []
    for p in planned:
        reason = _refusal(p)
        if reason is None:
            return
        refused.append(reason)
    processes = f"; {'--device cpu' if by_option else 'device: cpu'} runs it on CPU processes"
    for run, reason in plan.not_runnable().items():
        lacks_gpu = plan.runs[run].parameters.device == "cuda" and plan.machine.gpus == 0
        refused.append(f"cannot run here: {reason}{processes if lacks_gpu else ''}")
    raise UserError(*dict.fromkeys(refused))


def _refusal(p: "JobParameters") -> str | None:
    """Return why a run cannot start here, by its program or because of a stated profiler; None if it can."""
    from multicard.core.reasons import describe_reason
    from multicard.launch import start
    from multicard.launch.profiler_choice import choose_profiler
    from multicard.launchers import LAUNCHERS

    command = start.rank_command(p)
    if reason := start.refusal(p, command):
        return describe_reason(reason)
    try:
        if p.profiler != "auto":
            # Raises `UserError` if the stated profiler cannot record the run here.
            choose_profiler(p.profiler, p.device, LAUNCHERS[p.launched_by].hidden_from_profilers, command.python)
    except UserError as error:
        return str(error)
    return None


def run_and_print(plan: "Plan", config: Path, profile: Path | None = None, retry_failed: bool = False) -> None:
    """Run the experiment of the configuration file `config`, and print its results.

    `retry_failed`: True to run again the runs that did not complete, whose records are removed first.

    Exits with 1 if Snakemake did not make all files, or no run completed; with `SOME_FAILED` if some runs completed and
    others did not.
    """
    from multicard.cli._pipeline import run_pipeline
    from multicard.cli._repeats import run_until_decided
    from multicard.config.read_run import read_run_if_any
    from multicard.core.layout import RUN

    began = time.monotonic()
    folder = Path(plan.experiment.results) / "runs"
    if retry_failed:
        for run in plan.planned():
            record = read_run_if_any(folder / run)
            if record is not None and not record.completed:
                (folder / run / RUN).unlink()
    if not plan.experiment.cluster:
        say(*_crowded(plan))
    plan, earlier_runs = run_until_decided(plan, config, profile)
    has_made_all = run_pipeline(config, profile, began=began, earlier_runs=earlier_runs)
    records = [read_run_if_any(folder / run) for run in plan.runnable()]
    ended = {record.outcome if record else None for record in records}
    if not has_made_all or "completed" not in ended:
        sys.exit(1)
    if ended != {"completed"}:
        sys.exit(SOME_FAILED)


def print_runs(plan: "Plan", config: Path, retry_failed: bool = False) -> None:
    """Print a table of the runs with their order and state, and lines: why some cannot run, and what the runs cost.

    The last line says so if the report of another configuration would be replaced by that of `config`, the file that
    states the runs.
    """
    from multicard.cli._repeats import least_and_most
    from multicard.workflow.report_source import replacement, stated_path

    machine = plan.machine
    states = {run: _state(plan, run, retry_failed) for run in plan.runs}
    # Runs that could run on a machine that also has what this one lacks.
    possible = {name: run for name, run in plan.runs.items() if run.unsupported_reason(machine.hypothetical()) is None}
    lines = [_summary(plan, states)]
    if FAILED in states.values():
        lines.append("--retry-failed repeats runs that failed before")
    reasons = Counter(plan.not_runnable().values())
    for reason, count in reasons.most_common():
        lines.append(f"{count} cannot: {reason}")
    unlikely_count = sum(run.exceeds_memory(machine) for run in possible.values())
    if unlikely_count:
        unlikely = counted(unlikely_count, "run")
        lines.append(f"{unlikely} unlikely to fit into the memory of a GPU (outcome out_of_memory)")
    lines += _crowded(plan)
    for name, model in plan.experiment.models.items():
        if model.missing_files():
            lines.append(f"download the weights of {name}: {model.download_command}")
    # The cost includes runs that cannot run here, because they may run on another machine.
    to_run = [run for name, run in possible.items() if states[name] in (WOULD_RUN, CANNOT)]
    lines += _costs(plan, to_run)
    lines += _times(plan, [run for run, state in states.items() if state == WOULD_RUN])
    until_decided = least_and_most(plan)
    if until_decided is not None:
        lines.append(until_decided)
    replaced = replacement(Path(plan.experiment.results), stated_path(config, Path.cwd()))
    if replaced:
        lines.append(replaced)
    say(_table(plan, states, possible), *lines)


def _crowded(plan: "Plan") -> list[str]:
    """Return a line for each way in which runs that are to run here have too few CPUs for their loader workers."""
    reasons = Counter(plan.runs[run].crowded_cpus(plan.machine) for run in plan.planned())
    return [f"{counted(count, 'run')}: {reason}" for reason, count in reasons.items() if reason is not None]


def _table(plan: "Plan", states: Mapping[str, str], possible: Mapping[str, "Run"]) -> "Table":
    """Return a table of each scenario's runs, in their order, with the memory that the runs in `possible` need."""
    from rich.table import Table

    memory = {name: _memory_needed(run, plan.machine) for name, run in possible.items()}
    has_memory = any(memory.values())
    headings = ["Scenario", "Order", "Run", "Here"]
    if has_memory:
        headings.append("Memory per GPU")
    table = Table()
    for heading in headings:
        # Runs may differ only at the end of their names, so that a cut name would say nothing.
        table.add_column(heading, overflow="fold")
    # All runs have a position, by which they are sorted. Only runs that run here have a number, which is shown.
    positions = {run: position for position, run in enumerate(plan.order)}
    numbers = {run: number for number, run in enumerate(plan.planned(), start=1)}
    for scenario, runs in plan.scenarios.items():
        # Only the first row of a scenario has its name.
        name = scenario
        for run in sorted(runs, key=lambda run: positions[run.id]):
            number = str(numbers.get(run.id, ""))
            state = plan.reasons[run.id] or states[run.id]
            cells: list[str | Text] = [name, number, run.id, plain(state)]
            if has_memory:
                cells.append(memory.get(run.id, ""))
            table.add_row(*cells)
            name = ""
        table.add_section()
    return table


def _summary(plan: "Plan", states: Mapping[str, str]) -> str:
    """Return how many runs are in each state, and what the machine has that they are planned for."""
    from multicard.profilers import PROFILERS

    machine = plan.machine
    counts = Counter(states.values())
    parts = [f"{counts[state]} {state}" for state in (WOULD_RUN, DONE, FAILED, ELSEWHERE) if counts[state]]
    if not counts[WOULD_RUN]:
        parts.insert(0, "none would run")
    equipment = [counted(machine.cpus, "CPU"), counted(machine.gpus, "GPU")]
    for name, profiler in PROFILERS.items():
        if profiler.program:
            equipment.append(name if name in machine.profilers else f"no {name}")
    nodes = f"{machine.nodes} nodes, each with " if machine.nodes > 1 else ""
    runs = counted(len(states), "run")
    return f"{runs}: {', '.join(parts)} ({nodes}{', '.join(equipment)})"


def _costs(plan: "Plan", runs: Sequence["Run"]) -> list[str]:
    """Return a line on what the runs on GPUs cost; no line if no run on GPUs has a known length."""
    from multicard.config.estimate import estimate_cost

    cost = estimate_cost(runs, plan.experiment.time_limit_min, plan.machine.gpus)
    if not cost.wall_h:
        return []
    hours = f"{cost.wall_h:.3g} h, one run after another, {cost.node_gpu_h:.3g} GPU hours of whole nodes"
    unknown = f"; not counted: {counted(cost.unknown, 'run')} of unknown length" if cost.unknown else ""
    return [f"about {hours}{unknown}"]


def _times(plan: "Plan", runs: Sequence[str]) -> list[str]:
    """Return a line on how long runs take that would run here, by those that are done.

    If none is done, it states the time limit, unless all are on GPUs, for which `_costs` has an estimate. No line
    without runs, and on a cluster, where they do not follow one another.
    """
    from multicard.config.estimate import times_by_earlier_runs

    if not runs or plan.experiment.cluster:
        return []
    times = times_by_earlier_runs(plan, runs)
    if times is not None:
        return [times.sentence()]
    if all(plan.runs[run].parameters.device == "cuda" for run in runs):
        return []
    return [
        f"how long they take is known once one has run; each {plan.experiment.time_limit_min} min at most "
        "(time_limit_min)"
    ]


def _state(plan: "Plan", run: str, retry_failed: bool) -> str:
    """Return the state of a run: what the pipeline would do with it, or why it would do nothing."""
    if run in plan.measured:
        return ELSEWHERE
    if plan.reasons[run]:
        return CANNOT
    from multicard.config.read_run import read_run_if_any

    record = read_run_if_any(Path(plan.experiment.results) / "runs" / run)
    if record is None:
        return WOULD_RUN
    if record.completed:
        return DONE
    return WOULD_RUN if retry_failed else FAILED


def _memory_needed(run: "Run", machine: "Machine") -> str:
    """Return the estimated memory of a run on GPUs, next to the memory of a GPU; empty if there is no estimate."""
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
