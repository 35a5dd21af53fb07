"""`multicard draw`: measures, tables, figures, conclusions and the report of what was recorded, without running it."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from multicard.analysis.claims import SHIPPED
from multicard.analysis.outputs import write_claims, write_recommendations, write_scenario
from multicard.archive.configuration import experiment_of
from multicard.archive.manifest import FILES
from multicard.archive.unpack import place_runs, read_manifest
from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.layout import RUN
from multicard.experiment.config import ARCHIVES, Experiment
from multicard.experiment.load import read_experiment
from multicard.experiment.runs import expand
from multicard.figures.draw import draw_scenario
from multicard.report.page import write_report
from multicard.report.results import CLAIMS, RECOMMENDATIONS, REPORT, Plan


@dataclass(frozen=True)
class Drawn:
    """How many runs were shown in how many figures, and the page."""

    runs: int
    figures: int
    report: Path


def draw(source: Path, out: Path, config: Path | None = None, claims: Path = SHIPPED) -> Drawn:
    """Make of recorded runs all that the workflow makes of runs, in the folder `out`, whole or not at all.

    Nothing is run, and no data, models or devices are looked for. Of the runs themselves `out` has the records.

    Parameters
    ----------
    source
        An archive made by `multicard archive`, or the results folder of an experiment.
    out
        A folder that is empty or not there.
    config
        Configuration of the experiment, which a results folder needs; an archive has its own.
    claims
        File of the claims to judge.

    Raises
    ------
    UserError
        If `out` holds something, the source is not whole, or none of its runs is the experiment's.
    """
    _check_free(out)
    with tempfile.TemporaryDirectory() as unpacked, _becoming(out) as made:
        if source.name.endswith(ARCHIVES) and not source.is_dir():
            experiment, runs = _from_archive(source, config, Path(unpacked)), Path(unpacked)
        else:
            experiment, runs = _from_results(source, config), source / "runs"
        plans, shown, figures = {}, set(), 0
        for name, expanded in expand(experiment).items():
            missing = {run.id: _lacks(runs / run.id, source) for run in expanded}
            folders = [runs / run for run, reason in missing.items() if reason is None]
            not_run = {run: reason for run, reason in missing.items() if reason is not None}
            write_scenario(folders, not_run, made / "scenarios" / name)
            scenario = experiment.scenarios[name]
            drawn = tuple(scenario.figures) if folders else ()
            draw_scenario(drawn, made / "scenarios" / name, made / "figures" / name)
            plans[name] = Plan(scenario.question, drawn)
            figures += len(drawn)
            for folder in folders:
                record = made / "runs" / folder.name / RUN
                record.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / RUN, record)
                shown.add(folder.name)
        if not shown:
            raise UserError(f"{source}: holds no whole run of the experiment, expected one or more to draw")
        write_claims(claims, made, list(plans), made / CLAIMS, made / "claims_comparisons.csv")
        write_recommendations(made, list(plans), made / RECOMMENDATIONS)
        write_report(made, made / REPORT, plans)
    return Drawn(len(shown), figures, out / REPORT)


def _check_free(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"--out: {out} is not empty, expected a folder that is, or that is not there")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file, expected a folder")
    obstacle = unwritable(out.absolute().parent)
    if obstacle:
        raise UserError(f"--out: cannot write to {out}: {obstacle}")


@contextmanager
def _becoming(out: Path) -> Iterator[Path]:
    """Give a folder beside `out`; what it holds comes into `out` when the block succeeds, the report last."""
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


def _from_archive(archive: Path, config: Path | None, folder: Path) -> Experiment:
    """Unpack the runs of an archive into `folder`; its experiment."""
    if config is not None:
        raise UserError(f"--config: {archive} has a configuration of its own, expected none beside it")
    manifest = read_manifest(archive)
    experiment = experiment_of(manifest, archive)
    place_runs(archive, folder, [run.run for run in manifest.runs])
    return experiment


def _from_results(results: Path, config: Path | None) -> Experiment:
    if not any(results.glob(f"runs/*/{RUN}")):
        expected = f"a folder with runs/*/{RUN}, or an archive ({' or '.join(ARCHIVES)})"
        raise UserError(f"{results}: found no results, expected {expected}")
    if config is None:
        raise UserError(f"{results}: does not tell what was asked, state the configuration: --config FILE")
    return read_experiment(config, outside=False)


def _lacks(run: Path, source: Path) -> str | None:
    """Why a run cannot be shown; None where all its files are there."""
    if not (run / RUN).is_file():
        return f"not recorded in {source.name}"
    missing = [name for name in FILES if not (run / name).is_file()]
    return f"not whole: {missing[0]} is missing" if missing else None
