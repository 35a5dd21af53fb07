"""The table of all runs: outcome and main measures."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.analysis.runs.notices import notices
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
    """A run: its id, that without the parts that all runs share, and its cells."""

    run: str
    short: str
    outcome: str
    scenarios: list[str]
    cells: list[Cell]


@dataclass(frozen=True)
class RunTable:
    """Headings of the columns after the run, whether they hold numbers, the rows, and what is the same in all."""

    columns: list[tuple[str, bool]]
    rows: list[Row]
    same: list[tuple[str, str]]


def run_table(results: Results) -> RunTable:
    """Give one row per run in the order of the scenarios, without columns that are empty or the same in all rows."""
    measures = _measures(results)
    shown = {
        name: measure(name, measures[name]) for name in MEASURES if name in measures and measures[name].notna().any()
    }
    runs = results.runs
    wall = pd.to_numeric(runs.get("wall_time_s", pd.Series("", index=runs.index)), errors="coerce")
    how_long = measure("wall_time_s", wall)
    starts = runs.get("started", pd.Series("", index=runs.index)).astype(str).str[:16].str.replace("T", " ")
    days = set(starts.str[:10])
    started = f"Started ({min(days)})" if len(days) == 1 and min(days) else "Started"
    rows = []
    for index, run in runs.iterrows():
        is_known = run["run"] in measures.index
        known = measures.loc[run["run"]] if is_known else {}
        rows.append(
            {
                "Scenario": Cell(", ".join(run["scenarios"])),
                "Outcome": Cell(cell("outcome", run["outcome"])),
                "Devices": _number(known.get("devices"), None),
                **{how.heading: _number(known.get(name), how) for name, how in shown.items()},
                "Bound": Cell(cell("bound", known.get("bound"))),
                how_long.heading: _number(wall[index], how_long),
                started: Cell(starts[index].removeprefix(started[9:-1]).strip()),
                "Reason": Cell(run["reason"]),
                "Notices": Cell("; ".join(notices(known)) if is_known else ""),
            }
        )
    columns = {heading: [row[heading] for row in rows] for heading in rows[0]}
    alike = {heading for heading, cells in columns.items() if len(rows) > 1 and len({each.text for each in cells}) == 1}
    kept = [name for name, cells in columns.items() if name not in alike and any(each.text for each in cells)]
    same = [(name, columns[name][0].text) for name in columns if name in alike and columns[name][0].text]
    common, short = short_names([str(name) for name in runs["run"]])
    return RunTable(
        [(name, any(each.number is not None for each in columns[name])) for name in kept],
        [
            Row(run["run"], name, run["outcome"], run["scenarios"], [row[each] for each in kept])
            for (_, run), name, row in zip(runs.iterrows(), short, rows, strict=True)
        ],
        common + same,
    )


def short_names(names: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Parts that all names with the same first part share, and the names without them.

    >>> short_names(["vision_digits_cpu1_r1", "vision_digits_cpu2_r1", "llm_tiny_r1"])
    ([('vision_…', 'digits, r1')], ['vision_cpu1', 'vision_cpu2', 'llm_tiny_r1'])
    """
    alike: dict[str, list[list[str]]] = {}
    for name in names:
        alike.setdefault(name.partition("_")[0], []).append(name.split("_")[1:])
    common = {
        first: [part for part in rest[0] if all(part in own for own in rest)] if len(rest) > 1 else []
        for first, rest in alike.items()
    }
    short = [
        "_".join((first, *(part for part in rest if part not in common[first])))
        for first, *rest in (name.split("_") for name in names)
    ]
    if len(set(short)) < len(set(names)):
        return [], names
    return [(f"{first}_…", ", ".join(parts)) for first, parts in common.items() if parts], short


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
