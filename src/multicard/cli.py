"""The console command `multicard`."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multicard import __version__
from multicard.analysis.consistency import check_run
from multicard.errors import reported
from multicard.experiment.config import Experiment
from multicard.experiment.load import read_experiment
from multicard.experiment.machine import Machine
from multicard.experiment.runs import expand
from multicard.files import read_json
from multicard.record.names import ACTIVITY, RUN

WIDE = 220  # columns of a table that goes to a file or a pipe


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="multicard", description="Plan and check an experiment.")
    parser.add_argument("--version", action="version", version=f"multicard {__version__}")
    commands = parser.add_subparsers(required=True)
    for name, function, says in (
        ("runs", runs, "List the runs of a configuration, and what cannot run here and why."),
        ("status", status, "Show how far an experiment is, and check each run's record against its trace."),
    ):
        command = commands.add_parser(name, help=says, description=says)
        command.add_argument("--config", type=Path, default=Path("config/config.yaml"), help="configuration file")
        command.set_defaults(function=function)
    chosen = parser.parse_args(arguments)
    with reported():
        chosen.function(read_experiment(chosen.config))


def runs(experiment: Experiment) -> None:
    """Print the run table."""
    machine = Machine.here()
    table = Table("Scenario", "Run", "Here", title=None)
    unique: dict[str, str | None] = {}
    for scenario, expanded in expand(experiment).items():
        for number, run in enumerate(expanded):
            shared = run.id in unique
            obstacle = unique.setdefault(run.id, run.obstacle(machine))
            here = obstacle or ("runs, shared with a scenario above" if shared else "runs")
            table.add_row(scenario if number == 0 else "", run.id, here)
        table.add_section()
    console = _console()
    console.print(table)
    lost = sum(obstacle is not None for obstacle in unique.values())
    console.print(
        f"{len(unique)} runs, {len(unique) - lost} can run here "
        f"({machine.cpus} CPUs, {machine.gpus} GPUs, {'nsys' if machine.nsys else 'no nsys'})",
        highlight=False,
    )


def status(experiment: Experiment) -> None:
    """Print outcomes and disagreements; exit with 1 when a run failed or disagrees with its trace."""
    machine = Machine.here()
    unique = {run.id: run for expanded in expand(experiment).values() for run in expanded}
    outcomes: Counter[str] = Counter()
    table = Table("Run", "Outcome", "Remarks")
    sound = True
    for run in unique.values():
        folder = Path(experiment.results) / "runs" / run.id
        outcome, remarks = "waiting", []
        if (folder / RUN).exists():
            record = read_json(folder / RUN)
            outcome = record["outcome"]
            if record["reason"]:
                remarks.append(record["reason"])
            if outcome == "completed" and (folder / ACTIVITY / "tables.json").exists():
                faults = check_run(folder).faults()
                sound = sound and not faults
                remarks += faults
                missing = read_json(folder / ACTIVITY / "tables.json")["tables"]["phases"]["absent"]
                if missing:
                    remarks.append(f"no trace: {missing}")
            sound = sound and outcome != "failed"
        elif obstacle := run.obstacle(machine):
            outcome = "cannot run here"
            remarks.append(obstacle)
        outcomes[outcome] += 1
        if remarks:
            table.add_row(run.id, outcome, "; ".join(remarks))
    console = _console()
    if table.row_count:
        console.print(table)
    console.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()), highlight=False)
    if not sound:
        sys.exit(1)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDE)
