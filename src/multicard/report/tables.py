"""Make the tables of the page, with names in words and suitable units: the numbers of a figure, and all runs."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from pandas.api.types import is_bool_dtype, is_number, is_numeric_dtype

from multicard.config.experiment import is_parameter
from multicard.config.wording import value_words
from multicard.core.units import ARGS_PREFIX, heading, number, unit_for, units_of
from multicard.report.links import Link
from multicard.report.results import ReportContents
from multicard.results.notices import notices

DIGITS = 4  # significant digits of numbers
MOST_ROWS = 60  # number of rows that are shown below a figure; further rows are left out
# Columns that name a row. A number there is a name and has no unit.
LABELS = ("series", "configuration")
BOUNDS = ("_low", "_high")  # endings of the columns with the bounds of a measure's interval
# Columns of measures in the table of runs, those that the results have.
MEASURES = (
    "devices", "iteration_time_s", "throughput_samples_per_s", "tokens_per_s", "peak_memory_bytes", "mfu", "bound",
)  # fmt: skip
# Columns of the table of runs by whose values a reader can choose rows.
CHOICES = ("scenario", "outcome", "devices", "bound")
# A cell of a number: its whole part, then its decimals, exponent and interval.
NUMBER_CELL = re.compile(r"[-−]?[\d,]+([-−+.,e\d\[\] ]*)")


@dataclass(frozen=True)
class PageTable:
    """A table of text, as the template of the page shows it."""

    headings: list[str]
    numeric: list[bool]  # for each column, True if its cells are numbers
    rows: list[list[str]]
    # Names and values that are equal in all rows; they are stated once and have no column.
    same: list[tuple[str, str]] = field(default_factory=list)
    varying: tuple[str, ...] = ()  # headings of the columns that would be in `same` if all of their values were equal
    omitted_rows: int = 0  # number of further rows, which are not shown
    has_intervals: bool = False  # True if values have their intervals in brackets
    # Full name of each row, if the cells of the first column abbreviate them; else empty.
    full_names: list[str] = field(default_factory=list)
    links: list[list[Link]] = field(
        default_factory=list
    )  # links to files of each row; empty if no row has a cell for them
    choices: tuple[str, ...] = ()  # headings of columns by whose values a reader can choose rows

    @cached_property
    def paddings(self) -> list[list[str]]:
        """For each cell the text that is as wide as what it lacks behind its whole part, so that decimals can align.

        The page has it behind the number, invisible and outside of the text of the cell.
        """
        columns = zip(*self.rows, strict=True)
        cells_of_columns = [
            _paddings_of_column(cells) if is_numeric else [""] * len(cells)
            for cells, is_numeric in zip(columns, self.numeric, strict=True)
        ]
        return [list(row) for row in zip(*cells_of_columns, strict=True)]

    def without_same(self, stated: Sequence[tuple[str, str]]) -> "PageTable":
        """Return the table with `same` reduced to what is not stated elsewhere, in `stated`."""
        return replace(self, same=[pair for pair in self.same if pair not in stated])

    def with_choices(self, names: Sequence[str]) -> "PageTable":
        """Return the table with these columns to choose rows by; one that it does not have does not matter."""
        return replace(self, choices=tuple(in_words(name) for name in names))


class _Column(NamedTuple):
    heading: str
    is_numeric: bool
    cells: list[str]


def _paddings_of_column(cells: Sequence[str]) -> list[str]:
    """Return for each cell of a column the text that makes its part behind the whole number as wide as the widest one.

    All digits are equally wide, so that only the number of each kind of character counts. Cells of other text, such as
    rates with units, have none.

    >>> _paddings_of_column(["121.7", "263", "97.25", "", "12 GB/s"]), _paddings_of_column(["1.5 [1, 2]", "2.25"])
    (['0', '.00', '', '', ''], ['', '0  [,]'])
    """
    counts = []
    for cell_text in cells:
        number_cell = NUMBER_CELL.fullmatch(cell_text)
        counts.append(Counter(re.sub(r"\d", "0", number_cell[1])) if number_cell else None)
    widest: Counter[str] = Counter()
    for count in counts:
        widest |= count or Counter()
    return ["" if count is None else "".join((widest - count).elements()) for count in counts]


def numbers_table(data: pd.DataFrame, most: int = MOST_ROWS) -> PageTable:
    """Turn the CSV of a figure into a table for a reader.

    Parameters that are equal in all rows are stated once, in `same`. The bounds of a measure, in columns that end in
    `_low` and `_high`, are shown in brackets after its values. Empty columns are left out. At most `most` rows are
    shown.
    """
    column_names = []
    same = []
    for name in data:
        is_bound = name.endswith(BOUNDS) and name.rpartition("_")[0] in data
        if is_bound or data[name].isna().all():
            continue
        if _is_shared(data, name):
            same.append((in_words(name), cell(name, data[name].iloc[0])))
        else:
            column_names.append(name)
    shown_rows = data.head(most)
    columns = [_column(shown_rows, name) for name in column_names]
    rows_of_cells = zip(*(column.cells for column in columns), strict=True)
    return PageTable(
        headings=[column.heading for column in columns],
        numeric=[column.is_numeric for column in columns],
        rows=[list(row) for row in rows_of_cells],
        same=same,
        varying=tuple(in_words(name) for name in column_names if _can_be_shared(name)),
        omitted_rows=len(data) - len(shown_rows),
        has_intervals=any(f"{name}_low" in data for name in column_names),
    )


def common_to(tables: Sequence[PageTable]) -> list[tuple[str, str]]:
    """Return the names and values in `same` of any table that hold for all of them.

    A value does not hold where another table states another one, or has a column for it.
    """
    pairs = list(dict.fromkeys(pair for table in tables for pair in table.same))
    values_by_name = Counter(name for name, _ in pairs)
    varying = {name for table in tables for name in table.varying}
    return [(name, value) for name, value in pairs if values_by_name[name] == 1 and name not in varying]


def _is_shared(data: pd.DataFrame, name: str) -> bool:
    """True for a parameter, `outcome` or `synthetic` if there are several rows and all have the same value."""
    if len(data) < 2 or data[name].nunique(dropna=False) != 1:
        return False
    return _can_be_shared(name)


def _can_be_shared(name: str) -> bool:
    return name in ("outcome", "synthetic") or is_parameter(name)


def _column(data: pd.DataFrame, name: str) -> _Column:
    values = data[name]
    is_numeric = is_numeric_dtype(values) and not is_bool_dtype(values)
    if is_numeric and name not in LABELS and not is_parameter(name):
        return _measure_column(data, name)
    return _Column(in_words(name), is_numeric, [cell(name, value) for value in values])


def _measure_column(data: pd.DataFrame, name: str) -> _Column:
    """Return the values of a measure in a unit that suits them all, with intervals if `data` has both bounds."""
    units = units_of(name)
    factor, unit = unit_for(data[name], units) if units else (1.0, "")
    words = heading(name, unit)
    cells = [_scaled(value, factor) for value in data[name]]
    low, high = f"{name}_low", f"{name}_high"
    if low in data and high in data:
        bounds = zip(data[low], data[high], strict=True)
        brackets = [_brackets(lower, upper, factor) for lower, upper in bounds]
        cells = [value + bracket for value, bracket in zip(cells, brackets, strict=True)]
    return _Column(_capitalized(words), True, cells)


def _scaled(value: Any, factor: float) -> str:
    return number(float(value) * factor, DIGITS) if pd.notna(value) else ""


def _brackets(low: Any, high: Any, factor: float) -> str:
    """Return an interval in brackets, after a space; empty if the bounds are NaN (a single repeat) or equal."""
    if pd.isna(low) or low == high:
        return ""
    return f" [{_scaled(low, factor)}, {_scaled(high, factor)}]"


def run_table(contents: ReportContents) -> PageTable:
    """Return the table of all runs: a row per run with its name, scenarios, outcome, main measures and notices.

    In the names, parts that all runs of the same scenarios have in common are left out.
    """
    measures = _measures_by_run(contents)
    data = _run_data(contents.runs.set_index("run"), measures)
    names = data.index.to_series()
    abbreviated_names = names.groupby(data["scenario"]).transform(_abbreviated)
    unnamed_values = _unnamed_values(measures).reindex(data.index).fillna("")
    data.insert(0, "run", unnamed_values + abbreviated_names)
    table = numbers_table(data, most=len(data)).with_choices(CHOICES)
    return replace(table, full_names=list(names))


def _run_data(runs: pd.DataFrame, measures: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of the table of runs, without the names. All of these tables are indexed by run."""
    data = pd.DataFrame({"scenario": runs["scenarios"].map(", ".join), "outcome": runs["outcome"]})
    data = data.join(measures.filter(MEASURES))
    data["wall_time_s"] = pd.to_numeric(runs["wall_time_s"], errors="coerce")
    notices_by_run = {run: "; ".join(notices(row)) for run, row in measures.iterrows()}
    data["notices"] = pd.Series(notices_by_run, dtype=object).reindex(data.index).replace("", None)
    return data


def _measures_by_run(contents: ReportContents) -> pd.DataFrame:
    """Return the measures of all runs, each run once, with the first scenario that has it as `_scenario`.

    The table is empty if no scenario has measures.
    """
    tables = [
        scenario.measures.assign(_scenario=scenario.name) for scenario in contents.scenarios if len(scenario.measures)
    ]
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables, ignore_index=True).drop_duplicates("run").set_index("run")


def _unnamed_values(measures: pd.DataFrame) -> pd.Series:
    """Return the values that distinguish each run but are not in its id, which leaves out defaults.

    Only parameters that are text and have several values in the run's scenario count. Each value has a space after it.
    If the id has all of them, the text of the run is empty.
    """
    words = pd.Series("", measures.index, dtype=object)
    if measures.empty:
        return words
    for _, runs in measures.groupby("_scenario", sort=False):
        for name in runs:
            if not is_parameter(name) or not _has_text(runs[name]) or runs[name].nunique() < 2:
                continue
            for run, value in runs[name].dropna().items():
                if str(value) not in str(run).split("_"):
                    words[run] += f"{value} "
    return words


def _has_text(column: pd.Series) -> bool:
    return any(isinstance(value, str) for value in column)


def _abbreviated(names: pd.Series) -> list[str]:
    """Return ids of runs without the parts that all of them have in common; an id without other parts stays whole.

    >>> _abbreviated(pd.Series(["vision_cpu1_fp32_r1", "vision_cpu2_fp32_r1"]))
    ['cpu1', 'cpu2']
    """
    parts_of_names = [name.split("_") for name in names]
    common_parts = set.intersection(*map(set, parts_of_names))
    abbreviated = []
    for name, parts in zip(names, parts_of_names, strict=True):
        distinctive = " ".join(part for part in parts if part not in common_parts)
        abbreviated.append(distinctive or name)
    return abbreviated


def nothing_to_show(data: pd.DataFrame) -> str | None:
    """Return why a figure is empty, as its CSV file says; None if it is not empty."""
    is_empty = list(data) == ["nothing_to_show"] and len(data) > 0
    return str(data["nothing_to_show"].iloc[0]) if is_empty else None


def in_words(name: str) -> str:
    """Turn a name of a column, figure, table or outcome into words, the first with a capital.

    >>> in_words("out_of_memory"), in_words("cuda_api"), in_words("speedup")
    ('Out of memory', 'CUDA API', 'Speed-up')
    """
    words = heading(name)
    is_users_own = name.startswith(ARGS_PREFIX)
    return words if is_users_own else _capitalized(words)


def _capitalized(words: str) -> str:
    """Return words with the first letter as a capital, and all others unchanged.

    >>> _capitalized("iteration time (ms)")
    'Iteration time (ms)'
    """
    return words[:1].upper() + words[1:]


def cell(column: str, value: Any) -> str:
    """Return a value of a column as text; empty if it is None or NaN."""
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return ""
    if is_parameter(column):
        return value_words(column, value)
    if column == "outcome":
        return str(value).replace("_", " ")
    if isinstance(value, str | bool) or not is_number(value):
        return str(value)
    return number(float(value), DIGITS)
