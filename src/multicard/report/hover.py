"""What the page shows where a reader points at a mark of a figure: value, interval and number of repeats."""

from collections.abc import Sequence
from typing import NamedTuple

from multicard.core.units import heading, unit_for, units_of
from multicard.figures.marks import Mark
from multicard.stats.interval import Interval


class PointedMark(NamedTuple):
    """A mark with its text. Its place and its size are as in `Mark`, parts of the width and height of the picture."""

    left: float
    top: float
    width: float
    height: float
    is_bar: bool
    text: str


def pointed_marks(marks: Sequence[Mark]) -> list[PointedMark]:
    """Return marks with their texts; those of one column have one unit."""
    values_by_column: dict[str, list[float]] = {}
    for mark in marks:
        values_by_column.setdefault(mark.column, []).append(mark.value)
    pointed = []
    for mark in marks:
        units = units_of(mark.column)
        factor, unit = unit_for(values_by_column[mark.column], units) if units else (1.0, "")
        text = f"{mark.name}: {heading(mark.column)} {_value(mark, factor, unit)}"
        pointed.append(PointedMark(mark.left, mark.top, mark.width, mark.height, mark.is_bar, text))
    return pointed


def _value(mark: Mark, factor: float, unit: str) -> str:
    """Return the value of a mark in a unit, with its interval if it has one, and the number of repeats."""
    low, high = None, None
    # Repeats of equal memory have an interval of no width.
    if mark.low is not None and mark.high is not None and mark.low < mark.high:
        low, high = mark.low * factor, mark.high * factor
    has_space = unit not in ("", "%")
    return Interval(mark.value * factor, low, high, mark.repeats).format(unit=f" {unit}" if has_space else unit)
