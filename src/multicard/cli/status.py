"""`multicard status`."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import Command, add_configuration, add_profile

if TYPE_CHECKING:
    from multicard.launch.slurm_watch import QueuedJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment."""
    add_configuration(parser)
    add_profile(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print outcomes, disagreements and notices; exit with 1 when a run failed or disagrees with its trace."""
    from rich.table import Table

    from multicard.archive.matrix import Matrix
    from multicard.cli._console import console
    from multicard.core.errors import UserError
    from multicard.core.terminal import plain
    from multicard.experiment.load import read_experiment
    from multicard.launch.slurm_watch import AT_WORK, queued_jobs

    matrix = Matrix.plan(read_experiment(arguments.config, arguments.profile))
    jobs = {job.run: job for job in queued_jobs(Path.cwd()) if job.state in AT_WORK}
    outcomes: Counter[str] = Counter()
    damaged: list[str] = []
    table = Table("Run", "Outcome", "Remarks")
    all_sound = True
    for run in matrix.runs:
        folder = Path(matrix.experiment.results) / "runs" / run
        try:
            outcome, remarks, sound = _run_status(matrix.reasons[run], folder, jobs.get(run))
        except UserError as error:
            outcome, remarks, sound = "damaged", [], False
            damaged.append(str(error))
        all_sound = all_sound and sound
        outcomes[outcome] += 1
        if remarks:
            table.add_row(run, outcome, plain("; ".join(remarks)))
    terminal = console()
    if table.row_count:
        terminal.print(table)
    for line in damaged:
        terminal.print(plain(line), soft_wrap=True, highlight=False)
    terminal.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()), highlight=False)
    if not all_sound:
        sys.exit(1)


def _run_status(cannot_run: str | None, folder: Path, job: "QueuedJob | None") -> tuple[str, list[str], bool]:
    """Outcome of a run, remarks on it, and whether nothing is wrong.

    `cannot_run`: why it cannot run here. `job`: its job in Slurm's queue.
    """
    from multicard.analysis.conditions import disturbance
    from multicard.analysis.deviations import deviation, tear_down_problem
    from multicard.analysis.notices import notices
    from multicard.analysis.run_files import RunFiles
    from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, RUN
    from multicard.core.reasons import describe_reason
    from multicard.launch.attempts import is_at_work

    if not (folder / RUN).exists() and job:
        if job.state == "PENDING":
            return "queued", [f"Slurm job {job.id}: {job.reason.replace('_', ' ')}"], True
        return "running", [f"Slurm job {job.id}"], True
    if not (folder / RUN).exists() and is_at_work(folder):
        return "running", [], True
    if not (folder / RUN).exists():
        return ("cannot run here", [cannot_run], True) if cannot_run else ("waiting", [], True)
    record = RunFiles(folder).record
    remarks = [describe_reason(record["reason"])] if record.get("reason") else []
    if caveat := (record.get("profiler") or {}).get("caveat"):
        remarks.append(caveat)
    if problem := tear_down_problem(record):
        remarks.append(problem)
    if record["outcome"] != "completed" or not (folder / ACTIVITY / ACTIVITY_INDEX).exists():
        remarks += notices({"disturbance": disturbance(record), "deviation": deviation(record)})
        return record["outcome"], remarks, record["outcome"] != "failed"

    from multicard.analysis.measures import measure_run

    row = measure_run(folder)
    remarks += notices(row)
    if missing := RunFiles(folder).why_absent("phases"):
        remarks.append(f"no trace: {missing}")
    return record["outcome"], remarks, not row["inconsistency"]


COMMAND = Command(
    "status",
    20,
    "show an experiment's progress, check each run's record against its trace, and name runs with doubtful numbers",
    add_arguments,
    run,
)
