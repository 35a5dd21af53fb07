"""The contents of a results folder, as the report shows them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from multicard.analysis.choice.advice import Recommendations
from multicard.analysis.choice.recommend import advise
from multicard.analysis.evidence import Evidence, read_evidence
from multicard.analysis.provenance import notes
from multicard.analysis.scenario_tables import MEASURES, OUTCOME_TABLE, ScenarioTables, read_checked
from multicard.core.errors import UserError
from multicard.core.layout import CLAIM_TESTS, CLAIMS, RUN, RUN_NAME
from multicard.experiment.read_run import read_run
from multicard.figures.catalog import load_drawing
from multicard.runs.record import RunRecord

REPORT = "report.html"


@dataclass(frozen=True)
class Plan:
    """Question and figures of a scenario, by the configuration."""

    question: str = ""
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class FigureFiles:
    """A figure that was drawn: its pictures, those that exist, and the numbers that it shows."""

    name: str
    place: str  # in the results folder, without a suffix
    svg: Path | None
    png: Path | None
    numbers: pd.DataFrame


@dataclass(frozen=True)
class Scenario:
    """A question, its runs and its figures."""

    name: str
    question: str
    runs: pd.DataFrame
    measures: pd.DataFrame
    figures: list[FigureFiles]
    notes: list[str]  # lines about runs without numbers or with doubtful ones, as above the printed figures
    advice: Recommendations | None = None  # None where no run tells its workload


@dataclass(frozen=True)
class Results:
    """All results of an experiment."""

    scenarios: list[Scenario]
    records: dict[str, RunRecord]  # by run, of the runs that have one
    claims: pd.DataFrame | None
    claim_tests: pd.DataFrame | None
    advice: Recommendations | None

    @cached_property
    def runs(self) -> pd.DataFrame:
        """As runs.csv, each run once, with the names of its `scenarios` as a list: scenarios share runs."""
        every = pd.concat([each.runs.assign(scenarios=each.name) for each in self.scenarios], ignore_index=True)
        named = every.groupby("run", sort=False)["scenarios"].agg(list)
        return every.drop_duplicates("run").assign(scenarios=lambda rows: rows["run"].map(named)).reset_index(drop=True)


def read_results(folder: Path, plans: Mapping[str, Plan]) -> Results:
    """Read what the report shows of a results folder; `plans` has the scenarios, in order.

    Raises UserError where a table is missing or does not parse.
    """
    scenarios, evidence = [], []
    for name, plan in plans.items():
        tables = folder / "scenarios" / name
        runs, measures = _table(tables / OUTCOME_TABLE, "run", "outcome", "reason"), _table(tables / MEASURES)
        found = [each for figure in plan.figures if (each := figure_files(folder, f"figures/{name}/{figure}"))]
        said = notes(ScenarioTables(tables), any(load_drawing(each.name).profiled for each in found))
        if told := "workload" in measures and len(measures):
            evidence.append(read_evidence(folder, [name]))
        advice = advise(evidence[-1]) if told else None
        scenarios.append(Scenario(name, plan.question, runs, measures, found, said, advice))
    claims = folder / CLAIMS
    return Results(
        scenarios=scenarios,
        records=read_records(folder, dict.fromkeys(name for each in scenarios for name in each.runs["run"])),
        claims=_table(claims, "claim", "claim_text", "verdict", "refuted_if") if claims.exists() else None,
        claim_tests=_table(folder / CLAIM_TESTS, "claim", "test", "finding") if claims.exists() else None,
        advice=_advice_of_all(evidence),
    )


def _advice_of_all(evidence: list[Evidence]) -> Recommendations | None:
    """Of the runs of all scenarios, each once."""
    runs = {run.run: run for each in reversed(evidence) for run in reversed(each.runs)}
    ordered = [runs[name] for name in dict.fromkeys(run.run for each in evidence for run in each.runs)]
    return advise(Evidence(ordered, [each.scenarios[0] for each in evidence])) if ordered else None


def figure_files(results: Path, place: str) -> FigureFiles | None:
    """The files of a figure; None if it was not drawn, as of a scenario that cannot run here."""
    numbers = results / f"{place}.csv"
    if not numbers.exists():
        return None
    svg, png = (path if path.exists() else None for path in (results / f"{place}.svg", results / f"{place}.png"))
    return FigureFiles(numbers.stem, place, svg, png, _table(numbers))


def read_records(results: Path, runs: Iterable[str]) -> dict[str, RunRecord]:
    """Return the records of those runs of a results folder that have one.

    Raises `UserError` at the first that is damaged.
    """
    folders = {name: results / "runs" / name for name in runs if RUN_NAME.fullmatch(str(name))}
    return {name: read_run(folder) for name, folder in folders.items() if (folder / RUN).exists()}


def _table(path: Path, *words: str) -> pd.DataFrame:
    """Read a CSV file. With `words`, columns that it must have, every cell stays the text that it is."""
    table = read_checked(path, **({"dtype": str, "keep_default_na": False} if words else {"low_memory": False}))
    for column in words:
        if column not in table:
            raise UserError(f"{path}: no column {column}")
    return table
