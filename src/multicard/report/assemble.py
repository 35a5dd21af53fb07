"""Make a results folder from run directories: scenario tables, figures, conclusions and the report. Nothing is run."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from multicard.answers.outputs import write_recommendations, write_scenario
from multicard.config.experiment import Experiment
from multicard.config.figures import WidthName
from multicard.config.runs import expand
from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.layout import MACHINES, RECOMMENDATIONS, RUN, machine_records
from multicard.figures.draw import draw_scenario
from multicard.papers.tables import write_claims
from multicard.report.page import write_report
from multicard.report.results import REPORT, ScenarioPlan
from multicard.share.whole import first_missing


@dataclass(frozen=True)
class Drawn:
    """What `draw` has written."""

    runs: int  # number of runs
    figures: int  # number of figures
    report: Path


def measure(experiment: Experiment, runs: Path, source: Path, folder: Path) -> dict[str, ScenarioPlan]:
    """Write the tables of all scenarios and the records of their runs into `folder`, as the workflow lays them out.

    Return the question and the figures of each scenario, by name. A scenario without complete runs has no figures.

    `runs`: folder of the run directories; records of machines' limits are read from the folder `machine` next to it.
    `source`: archive or folder that the runs come from, for messages. Data sets, models and devices of the experiment
    need not be there.

    Raises `UserError` if no run of the experiment is complete, or a file of a run is damaged.
    """
    plans: dict[str, ScenarioPlan] = {}
    machines = machine_records(runs.parent)
    for name, planned_runs in expand(experiment).items():
        complete: list[Path] = []
        reasons_not_shown: dict[str, str] = {}
        for run in planned_runs:
            reason = _reason_not_shown(runs / run.id, source)
            if reason is None:
                complete.append(runs / run.id)
            else:
                reasons_not_shown[run.id] = reason
        scenario = experiment.scenarios[name]
        out = folder / "scenarios" / name
        write_scenario(complete, reasons_not_shown, out, machines, scenario.repeats.looks)
        plans[name] = ScenarioPlan(scenario.question, tuple(scenario.figures) if complete else ())
        for run_folder in complete:
            record = folder / "runs" / run_folder.name / RUN
            record.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run_folder / RUN, record)
    if machines:
        shutil.copytree(runs.parent / MACHINES, folder / MACHINES, dirs_exist_ok=True)
    if not (folder / "runs").exists():
        raise UserError(f"{source}: found no complete run of the experiment, expected one or more")
    return plans


def draw(measured: Path, plans: Mapping[str, ScenarioPlan], out: Path, width: WidthName) -> Drawn:
    """Write a results folder `out`: a copy of `measured`, figures of this width, conclusions and the report.

    `measured`, `plans`: the folder that `measure` filled, and what it returned. `out` must be empty or missing; if an
    error is raised while the files are made, nothing is written to it.
    """
    with _filled_at_end(out) as folder:
        shutil.copytree(measured, folder, dirs_exist_ok=True)
        for name, plan in plans.items():
            draw_scenario(plan.figures, folder / "scenarios" / name, folder / "figures" / name, width)
        write_claims(folder, list(plans))
        write_recommendations(folder, list(plans), folder / RECOMMENDATIONS)
        write_report(folder, folder / REPORT, plans)
        run_count = len(list(folder.glob(f"runs/*/{RUN}")))
    figure_count = sum(len(plan.figures) for plan in plans.values())
    return Drawn(run_count, figure_count, out / REPORT)


def check_free(out: Path) -> None:
    """Raise `UserError` if the folder `out` is not empty, is a file, or cannot be made."""
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: not empty, expected an empty folder or one that does not exist")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: a file, expected a folder")
    reason = unwritable(out.absolute().parent)
    if reason:
        raise UserError(f"{out}: cannot be written: {reason}")


@contextmanager
def _filled_at_end(out: Path) -> Iterator[Path]:
    """Yield a scratch folder next to `out`. If the block raises no error, the content then moves into `out`."""
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        yield scratch
        out.mkdir(exist_ok=True)
        # The report moves last: where there is a report, all files that it shows are there, too.
        for part in sorted(scratch.iterdir(), key=lambda part: part.name == REPORT):
            shutil.move(part, out / part.name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _reason_not_shown(run: Path, source: Path) -> str | None:
    """Return why a run cannot be shown: it lacks its record, or another file that the tables need; None if it can."""
    if not (run / RUN).is_file():
        return f"not recorded in {source.name}"
    missing_file = first_missing(run)
    return f"incomplete: {missing_file} is missing" if missing_file else None
