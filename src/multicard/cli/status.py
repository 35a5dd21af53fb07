"""Show the progress of an experiment, and runs whose files or numbers are in doubt."""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import MEASURE, Command, add_configuration, add_profile
from multicard.cli._console import say
from multicard.core.errors import UserError
from multicard.core.terminal import plain
from multicard.core.values import Row

if TYPE_CHECKING:
    from multicard.workflow.slurm_queue import QueuedJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the configuration and the profile."""
    add_configuration(parser)
    add_profile(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print outcomes and remarks; exit with 1 if a run failed, is damaged, or its numbers disagree with its trace."""
    from rich.table import Table

    from multicard.config.load import read_experiment, read_profile
    from multicard.config.plan import Plan
    from multicard.workflow.slurm_queue import AT_WORK, queue

    plan = Plan.make(read_experiment(arguments.config, arguments.profile, outside=False))
    results = Path(plan.experiment.results)
    measured = _measured(results, list(plan.scenarios))
    slurm = queue(Path.cwd())
    # `AT_WORK`: states of jobs that have not ended, queued ones included.
    jobs = {job.run: job for job in slurm.jobs if job.state in AT_WORK}
    outcomes: Counter[str] = Counter()
    damaged: list[str] = []
    table = Table("Run", "Outcome", "Remarks")
    all_sound = True
    for run in plan.runs:
        folder = results / "runs" / run
        try:
            outcome, remarks, sound = run_status(plan.reasons[run], folder, jobs.get(run), measured.get(run))
        except UserError as error:
            outcome, remarks, sound = "damaged", [], False
            damaged.append(str(error))
        all_sound = all_sound and sound
        outcomes[outcome] += 1
        if remarks:
            table.add_row(run, outcome, plain("; ".join(remarks)))
    say(*[table] * bool(table.row_count), *damaged)
    if slurm.problem and arguments.profile and read_profile(arguments.profile).get("executor") == "slurm":
        say(f"Slurm does not answer: {slurm.problem}; queued and running jobs may be shown as waiting")
    say(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    if not all_sound:
        sys.exit(1)


def _measured(results: Path, scenarios: Sequence[str]) -> dict[str, Row]:
    """Return the rows of measures.csv by run, without rows that are older than the record of their run."""
    from multicard.core.layout import RUN
    from multicard.results.tables import MEASURES, read_measures

    rows: dict[str, Row] = {}
    for path in (results / "scenarios" / scenario / MEASURES for scenario in scenarios):
        if path.exists():
            measured_at = path.stat().st_mtime
            for row in read_measures(path).to_dict("records"):
                record = results / "runs" / str(row["run"]) / RUN
                if record.exists() and record.stat().st_mtime <= measured_at:
                    rows[row["run"]] = row
    return rows


def run_status(
    cannot_run: str | None, folder: Path, job: "QueuedJob | None", row: Mapping[str, Any] | None
) -> tuple[str, list[str], bool]:
    """Return the outcome of a run, remarks on it, and whether it is sound.

    A run is not sound if it failed, or if its measures disagree with its trace. Other outcomes, such as "timed_out" or
    "waiting", are sound.

    `cannot_run`: why it cannot run here, None if it can. `job`: its job in Slurm's queue, None if it has none. `row`:
    its measures, None if no table has them.

    Raises `UserError` if a file of the run is missing or damaged.
    """
    import pandas as pd

    from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, RUN
    from multicard.core.reasons import describe_reason
    from multicard.launch.attempts import is_at_work
    from multicard.results.conditions import disturbance_of
    from multicard.results.notices import notices
    from multicard.results.run_files import RunFiles
    from multicard.share.whole import check_files

    if not (folder / RUN).exists():
        if job and job.state == "PENDING":
            return "queued", [f"Slurm job {job.id}: {job.reason.replace('_', ' ')}"], True
        if job or is_at_work(folder):
            return "running", [f"Slurm job {job.id}"] if job else [], True
        return ("cannot run here", [cannot_run], True) if cannot_run else ("waiting", [], True)
    files = RunFiles(folder)
    record, outcome = files.record, files.record.outcome
    remarks = list(filter(None, (describe_reason(record.reason), record.profiler.caveat)))
    traced = (folder / ACTIVITY / ACTIVITY_INDEX).exists()
    # Raises `UserError` if a file of the run is missing, or is not what the run wrote.
    check_files(files, traced or row is not None)
    if row is None or outcome != "completed":
        remarks += notices({"disturbance": disturbance_of(record)})
        return outcome, remarks, outcome != "failed"
    remarks += notices(row)
    if traced and (missing := files.why_absent("phases")):
        remarks.append(f"no trace: {missing}")
    return outcome, remarks, pd.isna(row.get("inconsistency"))


COMMAND = Command(MEASURE, "multicard status", add_arguments, run)
