"""The numbers of a figure as a table."""

from dataclasses import dataclass

import pandas as pd

from multicard.experiment.config import is_parameter
from multicard.report.wording import cell, in_words, is_number, measure

MOST_ROWS = 60
LABELS = ("series", "configuration")


@dataclass(frozen=True)
class Table:
    """A table of text: headings, which columns are numeric, rows, and the values that all rows share."""

    headings: list[str]
    numeric: list[bool]
    rows: list[list[str]]
    same: list[tuple[str, str]]
    left_out: int = 0
    intervals: bool = False


def numbers_table(data: pd.DataFrame) -> Table:
    """Turn the CSV of a figure into a table for a reader.

    Parameters that all rows share are given once, in `same`. A measure with `_low` and `_high` has them in brackets.
    Empty columns are left out.
    """
    ends = {f"{name}_{end}" for name in data for end in ("low", "high") if f"{name}_{end}" in data}
    same, columns = [], []
    for name in data:
        if name in ends or data[name].isna().all():
            continue
        alike = data[name].nunique(dropna=False) == 1
        if alike and ((is_parameter(name) and name not in LABELS) or name in ("outcome", "synthetic")):
            same.append((in_words(name), cell(name, data[name].iloc[0])))
        else:
            columns.append(name)
    shown = data.head(MOST_ROWS)
    parts = [_column(shown, name, ends) for name in columns]
    return Table(
        headings=[heading for heading, _, _ in parts],
        numeric=[numeric for _, numeric, _ in parts],
        rows=[list(row) for row in zip(*(texts for _, _, texts in parts), strict=True)],
        same=same,
        left_out=len(data) - len(shown),
        intervals=any(f"{name}_low" in ends for name in columns),
    )


def nothing_to_show(data: pd.DataFrame) -> str | None:
    """Why a figure is empty, by its CSV; None if it is not."""
    return str(data["nothing_to_show"].iloc[0]) if list(data) == ["nothing_to_show"] and len(data) else None


def _column(data: pd.DataFrame, name: str, ends: set[str]) -> tuple[str, bool, list[str]]:
    """Heading of a column, whether it is numeric, and its cells."""
    values = data[name]
    numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    if is_parameter(name) or name in LABELS or not numeric:
        return in_words(name), numeric, [cell(name, value) for value in values]
    how = measure(name, values)
    if not {f"{name}_low", f"{name}_high"} <= ends:
        return how.heading, True, [how.shown(value) for value in values]
    texts = []
    for value, low, high in zip(values, data[f"{name}_low"], data[f"{name}_high"], strict=True):
        known = is_number(low) and is_number(high) and low != high
        texts.append(f"{how.shown(value)} [{how.shown(low)}, {how.shown(high)}]" if known else how.shown(value))
    return how.heading, True, texts
