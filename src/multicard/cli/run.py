"""`multicard run`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import Command, add_profile

if TYPE_CHECKING:
    from multicard.experiment.config import Experiment
    from multicard.experiment.parameters import JobParameters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration."""
    parser.add_argument("config", type=Path, metavar="CONFIG", help="configuration file")
    add_profile(parser, "to run by")
    parser.epilog = "With options of Snakemake after -- (such as -- --dry-run) all output is Snakemake's."


def run(arguments: argparse.Namespace) -> None:
    """Run an experiment in the current folder, and print its results."""
    from multicard.experiment.load import read_experiment

    experiment = read_experiment(arguments.config, arguments.profile)
    if arguments.profile is None and not arguments.rest:
        check_start(experiment)
    run_and_print(experiment, arguments.config, arguments.profile, arguments.rest)


def check_start(experiment: "Experiment", planning: bool = False) -> None:
    """Refuse an experiment that has measured nothing yet and of which no run can start on this machine.

    `planning`: that this machine has too few devices is no reason.

    Raises
    ------
    UserError
        A line for each reason.
    """
    from multicard.archive.matrix import Matrix
    from multicard.core.errors import UserError
    from multicard.core.files import unwritable
    from multicard.core.layout import RUN

    if not planning and (problem := unwritable(Path(".snakemake"))):
        raise UserError(
            f"cannot write to this folder, where Snakemake keeps its state: {problem}; run it from another one"
        )
    matrix = Matrix.plan(experiment)
    measured = any((Path(experiment.results) / "runs" / run / RUN).exists() for run in matrix.runs)
    if measured or matrix.recorded.archives or experiment.cluster:
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
    unsupported = [f"cannot run here: {reason}" for reason in matrix.not_runnable().values()]
    raise UserError(*dict.fromkeys([*refused, *unsupported]))


def _refusal(p: "JobParameters") -> str | None:
    """Why a run cannot start on this machine, by its workload or by the profiler that is stated; None where it can."""
    from multicard.core.errors import UserError
    from multicard.core.reasons import describe_reason
    from multicard.experiment.workload import WORKLOADS
    from multicard.launch.job import choose_profiler

    work = WORKLOADS[p.workload]
    if reason := work.refusal(p):
        return describe_reason(reason.record())
    try:
        if p.profiler != "auto":
            choose_profiler(p.profiler, p.device, work.hidden_from_profilers(p), work.interpreter(p))
    except UserError as error:
        return str(error)
    return None


def run_and_print(
    experiment: "Experiment", config: Path, profile: Path | None = None, options: Sequence[str] = ()
) -> None:
    """Run an experiment, which `config` states, and print its results unless Snakemake was given options.

    Exits with 1 unless all was made and a run completed.
    """
    from multicard.cli._overview import print_results
    from multicard.cli._pipeline import run_pipeline

    made = run_pipeline(config, profile, options)
    if not (options or print_results(experiment, config, profile)) or not made:
        sys.exit(1)


COMMAND = Command(
    "run", 14, "run a configuration in the current folder, and print its results", add_arguments, run,
    rest="[-- SNAKEMAKE-OPTION ...]",
)  # fmt: skip
