"""The table of all runs: outcome and main measures."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.analysis.runs.notices import notices, remarks
from multicard.report.results import Results
from multicard.report.wording import Measure, cell, is_number, measure

# Measures in the table, as far as the runs have them.
MEASURES = ("iteration_time_s", "throughput_samples_per_s", "tokens_per_s", "peak_memory_bytes", "mfu")


@dataclass(frozen=True)
class Cell:
    """Text of a cell, and the number to sort it by if it has one."""

    text: str
    number: str | None = None


@dataclass(frozen=True)
class Row:
    """A run."""

    run: str
    outcome: str
    scenarios: list[str]
    cells: list[Cell]


@dataclass(frozen=True)
class RunTable:
    """Headings of the columns after run, scenario and outcome, whether they hold numbers, and the rows."""

    columns: list[tuple[str, bool]]
    rows: list[Row]


def run_table(results: Results) -> RunTable:
    """Give one row per run in the order of the scenarios; empty columns are left out."""
    measures = _measures(results)
    shown = {
        name: measure(name, measures[name]) for name in MEASURES if name in measures and measures[name].notna().any()
    }
    runs = results.runs
    wall = pd.to_numeric(runs.get("wall_time_s", pd.Series("", index=runs.index)), errors="coerce")
    how_long = measure("wall_time_s", wall)
    reasons = runs["reason"].astype(bool).any()
    doubts = {run: "; ".join([*notices(values), *remarks(values)]) for run, values in measures.iterrows()}
    bound = "bound" in measures and measures["bound"].notna().any()
    columns = [("Devices", True), *((how.heading, True) for how in shown.values())]
    columns += [*([("Bound", False)] if bound else []), (how_long.heading, True)]
    columns += [("Started", False), *([("Reason", False)] if reasons else [])]
    columns += [("Notices", False)] if any(doubts.values()) else []
    rows = []
    for index, run in runs.iterrows():
        known = measures.loc[run["run"]] if run["run"] in measures.index else {}
        cells = [_number(known.get("devices"), None), *(_number(known.get(name), how) for name, how in shown.items())]
        cells += [Cell(cell("bound", known.get("bound")))] if bound else []
        cells += [_number(wall[index], how_long), Cell(str(run.get("started", ""))[:16].replace("T", " "))]
        cells += [Cell(run["reason"])] if reasons else []
        cells += [Cell(doubts.get(run["run"], ""))] if any(doubts.values()) else []
        rows.append(Row(run["run"], run["outcome"], run["scenarios"], cells))
    return RunTable(columns, rows)


def _measures(results: Results) -> pd.DataFrame:
    """Measures of every run, by its name; of a run in several scenarios those of the first."""
    tables = [each.measures for each in results.scenarios if len(each.measures)]
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables, ignore_index=True).drop_duplicates("run").set_index("run")


def _number(value: Any, how: Measure | None) -> Cell:
    if not is_number(value):
        return Cell("", "")
    return Cell(how.shown(value) if how else cell("devices", value), f"{float(value):.9g}")
