"""From run directories to a results folder: scenario tables, figures, conclusions and the report, without running."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from multicard.analysis.outputs import write_recommendations, write_scenario
from multicard.archive.whole import first_missing
from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.layout import MACHINES, RECOMMENDATIONS, RUN, machine_records
from multicard.experiment.config import Experiment
from multicard.experiment.runs import expand
from multicard.figures.draw import draw_scenario
from multicard.papers.claims import SHIPPED
from multicard.papers.tables import write_claims
from multicard.report.page import write_report
from multicard.report.results import REPORT, Plan


@dataclass(frozen=True)
class Drawn:
    """How many runs were shown in how many figures, and the page."""

    runs: int
    figures: int
    report: Path


def measure(experiment: Experiment, runs: Path, source: Path, folder: Path) -> dict[str, Plan]:
    """Write the tables of all scenarios and the records of their runs into `folder`, as the workflow lays them out.

    `runs` holds the run directories, beside the limits of machines; `source`, what these are from, is for messages.
    Gives question and figures by scenario. No data, models or devices are looked for.
    Raises UserError if none of the runs is the experiment's and complete, or a file of a run is damaged.
    """
    plans: dict[str, Plan] = {}
    machines = machine_records(runs.parent)
    for name, expanded in expand(experiment).items():
        missing = {run.id: _missing(runs / run.id, source) for run in expanded}
        folders = [runs / run for run, reason in missing.items() if reason is None]
        not_run = {run: reason for run, reason in missing.items() if reason is not None}
        write_scenario(folders, not_run, folder / "scenarios" / name, machines)
        scenario = experiment.scenarios[name]
        plans[name] = Plan(scenario.question, tuple(scenario.figures) if folders else ())
        for run in folders:
            record = folder / "runs" / run.name / RUN
            record.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run / RUN, record)
    if machines:
        shutil.copytree(runs.parent / MACHINES, folder / MACHINES, dirs_exist_ok=True)
    if not (folder / "runs").exists():
        raise UserError(f"{source}: found no complete run of the experiment, expected one or more")
    return plans


def draw(measured: Path, plans: Mapping[str, Plan], out: Path) -> Drawn:
    """Add figures, conclusions and the report to what `measure` wrote, in a folder that is free, all or nothing."""
    with _becoming(out) as made:
        shutil.copytree(measured, made, dirs_exist_ok=True)
        for name, plan in plans.items():
            draw_scenario(plan.figures, made / "scenarios" / name, made / "figures" / name)
        write_claims(SHIPPED, made, list(plans))
        write_recommendations(made, list(plans), made / RECOMMENDATIONS)
        write_report(made, made / REPORT, plans)
        runs = len(list(made.glob(f"runs/*/{RUN}")))
    return Drawn(runs, sum(len(plan.figures) for plan in plans.values()), out / REPORT)


def check_free(out: Path) -> None:
    """Refuse a folder for results that is not empty, or cannot be made."""
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: not empty, expected an empty folder or one that does not exist")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: a file, expected a folder")
    reason = unwritable(out.absolute().parent)
    if reason:
        raise UserError(f"{out}: cannot be written: {reason}")


@contextmanager
def _becoming(out: Path) -> Iterator[Path]:
    """Give a folder beside `out`; its content comes into `out` when the block succeeds, the report last."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        yield scratch
        out.mkdir(exist_ok=True)
        for part in sorted(scratch.iterdir(), key=lambda part: part.name == REPORT):
            shutil.move(part, out / part.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _missing(run: Path, source: Path) -> str | None:
    """Why a run cannot be shown; None where all its files are there."""
    if not (run / RUN).is_file():
        return f"not recorded in {source.name}"
    missing = first_missing(run)
    return f"incomplete: {missing} is missing" if missing else None
