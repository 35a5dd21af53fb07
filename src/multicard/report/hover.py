"""What the page shows where a reader points at a mark of a figure: value, interval and number of repeats."""

from collections.abc import Sequence
from typing import NamedTuple

from multicard.core.text import counted
from multicard.core.units import heading, number_in, unit_for, units_of
from multicard.figures.marks import Mark


class PointedMark(NamedTuple):
    """A mark: its place, as parts of the width and height of the picture, and its text."""

    left: float
    top: float
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
        low = None if mark.low is None else mark.low * factor
        high = None if mark.high is None else mark.high * factor
        value = number_in(mark.value * factor, low, high)
        configuration = f"{mark.series}, {counted(mark.devices, 'device')}"
        text = f"{configuration}: {heading(mark.column, unit)} {value}, n={mark.repeats}"
        pointed.append(PointedMark(mark.left, mark.top, text))
    return pointed
