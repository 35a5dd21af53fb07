"""The contents of a results folder, as the report shows them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from multicard.answers.answer import Answer
from multicard.answers.choice.advice import Recommendations
from multicard.answers.choice.recommend import advise, whole_of
from multicard.answers.notes import notes
from multicard.answers.scaling.headline import headline
from multicard.config.read_run import read_run
from multicard.core.errors import UserError
from multicard.core.layout import CLAIM_TESTS, CLAIMS, RUN, RUN_NAME
from multicard.figures.catalog import load_drawing
from multicard.figures.style import WIDTHS_IN
from multicard.results.results import SCENARIOS, Results
from multicard.results.tables import OUTCOME_TABLE, read_checked
from multicard.runs.record import RunRecord

REPORT = "report.html"


@dataclass(frozen=True)
class ScenarioPlan:
    """Question and figures of a scenario, as the configuration states them."""

    question: str = ""
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureFiles:
    """A figure that was drawn: its picture files, None for one that does not exist, and the numbers that it shows."""

    name: str
    path_in_results: str  # without a suffix
    svg: Path | None
    png: Path | None
    numbers: pd.DataFrame

    @property
    def is_narrow(self) -> bool:
        """True if the picture is as wide as a column, so that the page must not show it as wide as others."""
        if self.svg is None:
            return False
        with self.svg.open(encoding="utf-8") as lines:
            head = lines.read(2000)
        box = re.search(r'viewBox="0 0 ([0-9.]+) ', head)
        points_per_inch = 72
        return box is not None and float(box[1]) < points_per_inch * WIDTHS_IN["page"]


@dataclass(frozen=True)
class ScenarioContents:
    """What the report shows of a scenario: its question, its runs and its figures."""

    name: str
    question: str
    runs: pd.DataFrame  # runs.csv, as text
    figures: list[FigureFiles]
    notes: list[str]  # lines about runs whose numbers are missing or doubtful, see `answers.notes`
    answer: Answer  # to its question
    results: Results
    advice: Recommendations | None = None  # None without runs

    @property
    def measures(self) -> pd.DataFrame:
        """A row for each run that has a record."""
        return self.results.measures

    @property
    def has_programs(self) -> bool:
        """True if it has runs with a record. Without any, the program of the scenario is not known."""
        return len(self.measures) > 0


@dataclass(frozen=True)
class ReportContents:
    """All that the report shows of an experiment. Made by `read_contents`."""

    scenarios: list[ScenarioContents]
    records: dict[str, RunRecord]  # by run id; a run that was not run has no record
    claims: pd.DataFrame | None  # None where the papers' claims were not judged
    claim_tests: pd.DataFrame | None
    advice: Recommendations | None  # on the runs of all scenarios; None without runs

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Rows of runs.csv, each run once, with the list of all `scenarios` that have it: scenarios may share runs."""
        rows = [scenario.runs.assign(scenarios=scenario.name) for scenario in self.scenarios]
        table = pd.concat(rows, ignore_index=True)
        scenario_names = table.groupby("run", sort=False)["scenarios"].agg(list)
        table = table.drop_duplicates("run").reset_index(drop=True)
        return table.assign(scenarios=table["run"].map(scenario_names))


def read_contents(folder: Path, plans: Mapping[str, ScenarioPlan]) -> ReportContents:
    """Read what the report shows of a results folder.

    `plans`: question and figures of each scenario by its name, in the order of the report. Raises `UserError` if a
    table is missing or does not parse, or a record is damaged.
    """
    scenarios: list[ScenarioContents] = []
    results_of_scenarios = {name: Results.read_scenario(folder / SCENARIOS / name) for name in plans}
    results_of_all = Results.joined(list(results_of_scenarios.values()))
    whole = whole_of(results_of_all)
    for name, plan in plans.items():
        results = results_of_scenarios[name]
        figures = [files for figure in plan.figures if (files := figure_files(folder, f"figures/{name}/{figure}"))]
        shows_profiled_window = any(load_drawing(figure.name).profiled for figure in figures)
        scenarios.append(
            ScenarioContents(
                name=name,
                question=plan.question,
                runs=_text_table(folder / SCENARIOS / name / OUTCOME_TABLE, "run", "outcome", "reason", "wall_time_s"),
                figures=figures,
                notes=notes(results, shows_profiled_window),
                answer=headline(results),
                results=results,
                advice=advise(results, whole) if results.runs else None,
            )
        )
    runs_of_all = dict.fromkeys(run for scenario in scenarios for run in scenario.runs["run"])
    claims, claim_tests = None, None
    if (folder / CLAIMS).exists():
        claims = _text_table(folder / CLAIMS, "claim", "claim_text", "verdict", "refuted_if")
        claim_tests = _text_table(folder / CLAIM_TESTS, "claim", "test", "finding")
    return ReportContents(
        scenarios=scenarios,
        records=read_records(folder, runs_of_all),
        claims=claims,
        claim_tests=claim_tests,
        advice=advise(results_of_all, whole) if results_of_all.runs else None,
    )


def figure_files(results: Path, path_in_results: str) -> FigureFiles | None:
    """Return the files of a figure; None if it was not drawn, as for a scenario that cannot run here."""
    numbers = results / f"{path_in_results}.csv"
    if not numbers.exists():
        return None
    svg, png = results / f"{path_in_results}.svg", results / f"{path_in_results}.png"
    return FigureFiles(
        name=numbers.stem,
        path_in_results=path_in_results,
        svg=svg if svg.exists() else None,
        png=png if png.exists() else None,
        numbers=_table(numbers),
    )


def read_records(results: Path, runs: Iterable[str]) -> dict[str, RunRecord]:
    """Return the records in a results folder by run id, for those of `runs` that have a record.

    Raises `UserError` at the first record that is damaged.
    """
    folders = {name: results / "runs" / name for name in runs if RUN_NAME.fullmatch(str(name))}
    return {name: read_run(folder) for name, folder in folders.items() if (folder / RUN).exists()}


def _table(path: Path) -> pd.DataFrame:
    # By default pandas reads a long file in parts, and the cells of one column may get different types.
    return read_checked(path, low_memory=False)


def _text_table(path: Path, *columns: str) -> pd.DataFrame:
    """Read a CSV file without converting its cells from text; raise `UserError` unless it has these columns."""
    table = read_checked(path, dtype=str, keep_default_na=False)
    for column in columns:
        if column not in table:
            raise UserError(f"{path}: no column {column}")
    return table
