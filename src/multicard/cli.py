"""The console command `multicard`.

Commands import what they need when they run, since some libraries take a second to load.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from multicard import __version__
from multicard.errors import reported

if TYPE_CHECKING:
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import Run

WIDE = 220  # columns of a table that goes to a file or a pipe


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="multicard", description="Plan and check experiments, read traces.")
    parser.add_argument("--version", action="version", version=f"multicard {__version__}")
    commands = parser.add_subparsers(required=True)

    runs_command = commands.add_parser(
        "runs", help="list the runs of a configuration, and what cannot run here and why"
    )
    runs_command.set_defaults(function=runs)
    status_command = commands.add_parser(
        "status", help="show how far an experiment is, and check each run's record against its trace"
    )
    status_command.set_defaults(function=status)
    for command in (runs_command, status_command):
        command.add_argument("--config", type=Path, default=Path("config/config.yaml"), help="configuration file")

    analyze_command = commands.add_parser("analyze", help="say what a trace holds")
    analyze_command.add_argument("path", type=Path, help=".sqlite, .nsys-rep, .json or .json.gz, or a folder of them")
    analyze_command.add_argument("--out", type=Path, help="folder for the tables, as Parquet and CSV")
    analyze_command.add_argument("--json", action="store_true", help="print the tables as JSON")
    analyze_command.add_argument(
        "--only", type=lambda names: names.split(","), metavar="TABLE,…", help="make these tables only: sooner done"
    )
    analyze_command.set_defaults(function=analyze)

    compare_command = commands.add_parser("compare", help="say what got slower or faster from one trace to another")
    compare_command.add_argument("a", type=Path, help="as for analyze: the trace to compare with")
    compare_command.add_argument("b", type=Path, help="as for analyze: the trace to compare")
    compare_command.set_defaults(function=compare)

    chosen = parser.parse_args(arguments)
    with reported():
        chosen.function(chosen)


def runs(arguments: argparse.Namespace) -> None:
    """Print the run table."""
    from rich.table import Table

    from multicard.experiment.estimate import FLOPS, IMAGES_PER_S, REFERENCE_PX, gpu_hours
    from multicard.experiment.load import read_experiment
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import distinct, expand

    experiment = read_experiment(arguments.config)
    scenarios = expand(experiment)
    machine = Machine.here()
    columns = ["Scenario", "Run", "Here"]
    tuning = any(_tunes_on_cards(run) for run in distinct(scenarios).values())
    table = Table(*columns, *(["Memory per card"] if tuning else []))
    unique: dict[str, str | None] = {}
    for scenario, expanded in scenarios.items():
        for number, run in enumerate(expanded):
            shared = run.id in unique
            obstacle = unique.setdefault(run.id, run.obstacle(machine))
            here = obstacle or ("runs, shared with a scenario above" if shared else "runs")
            workers = run.parameters.loader_workers
            if obstacle is None and workers > machine.cpus:
                here += f", but its {workers} loader workers share {machine.cpus} CPUs"
            needed = [_memory_needed(run, machine)] if tuning else []
            table.add_row(scenario if number == 0 else "", run.id, here, *needed)
        table.add_section()
    console = _console()
    console.print(table)
    lost = sum(obstacle is not None for obstacle in unique.values())
    console.print(
        f"{len(unique)} runs, {len(unique) - lost} can run here "
        f"({machine.cpus} CPUs, {machine.gpus} GPUs, {'nsys' if machine.nsys else 'no nsys'})",
        highlight=False,
    )
    for name, model in experiment.models.items():
        if model.absent():
            console.print(f"fetch the weights of {name} by: {model.download_command}", highlight=False, soft_wrap=True)
    possible = [run for run in distinct(scenarios).values() if run.obstacle(machine.imagined()) is None]
    hours, unknown = gpu_hours(possible, experiment)
    if hours or unknown:
        more = f", and {unknown} runs on data of unknown size" if unknown else ""
        console.print(
            f"about {hours:.3g} GPU hours{more} (assuming of each card {IMAGES_PER_S['fp32']:g} images of "
            f"{REFERENCE_PX} px per second in fp32, and of language models {FLOPS['bf16'] / 1e12:g} TFLOP/s in bf16)",
            highlight=False,
        )


def _tunes_on_cards(run: "Run") -> bool:
    return run.model is not None and run.parameters.device == "cuda"


def _memory_needed(run: "Run", machine: "Machine") -> str:
    """Estimated memory of a run that tunes a language model on cards, beside what a card has."""
    if not _tunes_on_cards(run):
        return ""
    from multicard.experiment.memory import memory_of

    needed, held = memory_of(run.parameters, run.model.shape).total, machine.gpu_memory_bytes
    text = f"about {needed / 1e9:.1f} GB"
    if held is None:
        return text
    return f"{text} of {held / 1e9:.1f} GB" + (": unlikely to fit" if needed > held else "")


def status(arguments: argparse.Namespace) -> None:
    """Print outcomes and disagreements; exit with 1 when a run failed or disagrees with its trace."""
    from rich.table import Table

    from multicard.experiment.load import read_experiment
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import distinct, expand
    from multicard.terminal import plain

    experiment = read_experiment(arguments.config)
    machine = Machine.here()
    unique = distinct(expand(experiment))
    outcomes: Counter[str] = Counter()
    table = Table("Run", "Outcome", "Remarks")
    all_sound = True
    for run in unique.values():
        outcome, remarks, sound = _run_status(run, Path(experiment.results) / "runs" / run.id, machine)
        all_sound = all_sound and sound
        outcomes[outcome] += 1
        if remarks:
            table.add_row(run.id, outcome, plain("; ".join(remarks)))
    console = _console()
    if table.row_count:
        console.print(table)
    console.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()), highlight=False)
    if not all_sound:
        sys.exit(1)


def _run_status(run: "Run", folder: Path, machine: "Machine") -> tuple[str, list[str], bool]:
    """Outcome of a run, remarks on it, and whether nothing is wrong."""
    from multicard.files import read_json
    from multicard.record.names import ACTIVITY, ACTIVITY_INDEX, RUN

    if not (folder / RUN).exists():
        obstacle = run.obstacle(machine)
        return ("cannot run here", [obstacle], True) if obstacle else ("waiting", [], True)
    record = read_json(folder / RUN)
    remarks = [record["reason"]] if record["reason"] else []
    if record["outcome"] != "completed" or not (folder / ACTIVITY / ACTIVITY_INDEX).exists():
        return record["outcome"], remarks, record["outcome"] != "failed"

    from multicard.analysis.consistency import check_run

    faults = check_run(folder).faults()
    missing = read_json(folder / ACTIVITY / ACTIVITY_INDEX)["tables"]["phases"]["absent"]
    if missing:
        remarks.append(f"no trace: {missing}")
    return record["outcome"], remarks + faults, not faults


def analyze(arguments: argparse.Namespace) -> None:
    """Print what a trace says."""
    from multicard.analyze import analyze

    analyze(arguments.path, arguments.out, arguments.json, arguments.only, _console())


def compare(arguments: argparse.Namespace) -> None:
    """Print what differs between two traces."""
    from multicard.analyze import compare_traces

    compare_traces(arguments.a, arguments.b, _console())


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDE)
