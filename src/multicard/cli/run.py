"""Run a configuration in the current folder and print its results, or list its runs."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import MEASURE, Command, add_configuration, add_profile

SOME_FAILED = 3  # exit code

if TYPE_CHECKING:
    from multicard.archive.matrix import Matrix
    from multicard.experiment.parameters import JobParameters


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
    if arguments.rest and not arguments.dry_run:
        sys.exit(0 if run_pipeline(arguments.config, arguments.profile, arguments.rest) else 1)
    matrix = Matrix.plan(experiment)
    if arguments.dry_run:
        from multicard.cli._run_table import print_runs

        print_runs(matrix)
        return
    if arguments.profile is None:
        check_start(matrix)
    run_and_print(matrix, arguments.config, arguments.profile, arguments.retry_failed)


def check_start(matrix: "Matrix", planning: bool = False) -> None:
    """Refuse an experiment that has measured nothing yet and of which no run can start on this machine.

    `planning`: that this machine has too few devices is no reason.

    Raises
    ------
    UserError
        A line for each reason.
    """
    from multicard.core.errors import UserError
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

    folder = Path(matrix.experiment.results) / "runs"
    if retry_failed:
        for run in matrix.planned():
            if read_record(folder / run).get("outcome", "completed") != "completed":
                (folder / run / RUN).unlink(missing_ok=True)
    made = run_pipeline(config, profile)
    ended = {read_record(folder / run).get("outcome") for run in matrix.runnable()}
    if not made or "completed" not in ended:
        sys.exit(1)
    if ended != {"completed"}:
        sys.exit(SOME_FAILED)


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run; empty where there is none that can be read."""
    from multicard.core.files import read_json
    from multicard.core.layout import RUN
    from multicard.core.system import read_or_none

    return read_or_none(lambda: read_json(folder / RUN)) or {}


COMMAND = Command(20, MEASURE, "multicard run config/mine.yaml", add_arguments, run, "[-- SNAKEMAKE-OPTION ...]")
