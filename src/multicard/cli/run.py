"""`multicard run`."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import MEASURE, Command, add_configuration, add_profile

ALIKE = 3  # first runs of a matrix that end it if they fail alike
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
    add_failures(parser)
    parser.epilog = "With options of Snakemake after -- (such as -- --dry-run) all output is Snakemake's."


def add_failures(parser: argparse.ArgumentParser) -> None:
    """Add what becomes of runs that fail."""
    parser.add_argument(
        "--retry-failed", action="store_true",
        help="run again what did not complete; without it only where the script has changed since",
    )  # fmt: skip
    parser.add_argument(
        "--keep-going", action="store_true", help=f"go on although the first {ALIKE} runs have failed alike"
    )


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
    run_and_print(matrix, arguments.config, arguments.profile, arguments.retry_failed, arguments.keep_going)


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
    if measured or matrix.recorded.archives or matrix.experiment.cluster:
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
    matrix: "Matrix",
    config: Path,
    profile: Path | None = None,
    retry_failed: bool = False,
    keep_going: bool = False,
) -> None:
    """Run an experiment, which `config` states, and print its results.

    Exits with 1 unless all was made and a run completed, with `SOME_FAILED` where others did not.

    Raises
    ------
    UserError
        If the first runs failed alike, unless `keep_going`.
    """
    from multicard.cli._pipeline import run_pipeline

    forget_failed(matrix, retry_failed)
    folder = Path(matrix.experiment.results) / "runs"
    outcomes = {run: read_record(folder / run).get("outcome") for run in matrix.planned()}
    missing = [run for run, outcome in outcomes.items() if outcome is None]
    watched = not (keep_going or profile or "completed" in outcomes.values() or len(missing) <= ALIKE)
    watch = {"why_stop": lambda: why_stop(folder, missing)} if watched else {}
    made = run_pipeline(config, profile, **watch)
    ended = {read_record(folder / run).get("outcome") for run in matrix.runnable()}
    if not made or "completed" not in ended:
        sys.exit(1)
    if ended != {"completed"}:
        sys.exit(SOME_FAILED)


def forget_failed(matrix: "Matrix", every: bool) -> None:
    """Remove the records of runs that did not complete and whose script has changed since, or of `every` such run.

    So these run again.
    """
    from multicard.cli._overview import has_changed
    from multicard.core.layout import RUN

    folder = Path(matrix.experiment.results) / "runs"
    for run in matrix.planned():
        record = read_record(folder / run)
        if record.get("outcome", "completed") != "completed" and (every or has_changed(matrix.runs[run], record)):
            (folder / run / RUN).unlink(missing_ok=True)


def why_stop(folder: Path, planned: list[str]) -> str | None:
    """Why no more of the planned runs should start: the first ones failed alike, whatever their numbers.

    None where they did not, or where too few have ended to tell. One run out of memory says nothing of others.
    """
    from multicard.core.reasons import describe_reason

    ended = [record for run in planned[:ALIKE] if (record := read_record(folder / run))]
    if len(ended) < ALIKE or ended[0]["outcome"] not in ("failed", "timed_out") or len(set(map(_kind, ended))) > 1:
        return None
    return (
        f"stopped: the first {ALIKE} of {len(planned)} runs failed alike: "
        f"{describe_reason(ended[-1].get('reason') or {})}; the same command with --keep-going runs the others, and "
        "once the script has changed, all"
    )


def _kind(record: dict[str, Any]) -> tuple[Any, ...]:
    """Outcome and reason of a run, whatever the numbers in it."""
    reason = record.get("reason") or {}
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", reason.get("message") or "")
    return record["outcome"], reason.get("code"), message


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a run; empty where there is none that can be read."""
    from multicard.core.files import read_json
    from multicard.core.layout import RUN
    from multicard.core.system import read_or_none

    return read_or_none(lambda: read_json(folder / RUN)) or {}


COMMAND = Command(
    "run",
    20,
    "run a configuration in the current folder and print its results, or list its runs",
    add_arguments,
    run,
    MEASURE,
    "multicard run config/mine.yaml",
    rest="[-- SNAKEMAKE-OPTION ...]",
)
