"""The numbers behind the marks of a figure, kept in its SVG, so that a page can show them where a reader points.

Marks are points of a series, and bars with their parts. Matplotlib writes a group for the points of a series, and one
for each bar. The id of a group, which no reader sees, holds the numbers; hexadecimal digits keep it a valid name.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.core.text import counted
from multicard.figures.series import device_word

# A group has the line through the points, the shape of a point unless the picture has it already, and the points.
_POINTS = re.compile(
    r'<g id="marks-([0-9a-f]+)">\s*(?:<path [^>]*/>\s*)?(?:<defs>.*?</defs>\s*)?<g clip-path="[^"]*">(.*?)</g>',
    re.DOTALL,
)
_POINT = re.compile(r'<use [^>]*\bx="([0-9.]+)" y="([0-9.]+)"')
# The path of a bar goes along its four sides.
_BAR = re.compile(r'<g id="bar-([0-9a-f]+)">\s*<path d="([^"]*)"')
_NUMBER = re.compile(r"-?[0-9.]+(?:e-?[0-9]+)?")
_SIZE = re.compile(r'<svg [^>]*viewBox="0 0 ([0-9.]+) ([0-9.]+)"')


@dataclass(frozen=True)
class Mark:
    """A mark of a figure with its numbers, which are in the unit of their `column`.

    `left` and `top` are the place of a point, or of the upper left corner of a bar; `width` and `height` are the size
    of a bar, and 0 for a point. All are parts of the width and the height of the picture.
    """

    left: float
    top: float
    column: str
    name: str  # of what the value is: of a configuration, or of a kind of memory of it
    repeats: int
    value: float
    low: float | None  # bounds of the interval; None without one
    high: float | None
    width: float = 0.0
    height: float = 0.0

    @property
    def is_bar(self) -> bool:
        """True for a bar, or a part of one; False for a point."""
        return self.height > 0


def id_of_points(column: str, rows: pd.DataFrame) -> str:
    """Return the id of a group of points, one for each row in this order.

    `rows`: `series`, `device`, `devices`, `repeats`, and the column of the values with its bounds (`…_low`, `…_high`).
    """
    word = device_word(rows)
    cells = []
    for row in rows.to_dict("records"):
        name = f"{row['series']}, {counted(row['devices'], word)}"
        numbers = [_plain(row.get(each)) for each in ("repeats", column, f"{column}_low", f"{column}_high")]
        cells.append([_literal(name), *numbers])
    return f"marks-{_hexadecimal([column, cells])}"


def id_of_bar(
    column: str, name: str, repeats: int, value: float, low: float | None = None, high: float | None = None
) -> str:
    """Return the id of the group of a bar, or of a part of one. The arguments are those of `Mark`; NaN is no bound."""
    return f"bar-{_hexadecimal([column, [_literal(name), *map(_plain, (repeats, value, low, high))]])}"


def _hexadecimal(content: object) -> str:
    return json.dumps(content).encode().hex()


def _literal(name: str) -> str:
    """Return a name in a figure as a page shows it: `for_figure` has escaped its dollars."""
    return name.replace(r"\$", "$")


def _plain(value: object) -> object:
    """Return a cell as JSON can hold it; None for NaN."""
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def marks_in(svg: str) -> Iterator[Mark]:
    """Yield the marks whose numbers an SVG holds: points series by series, then bars row by row, as they are read.

    A series of which not all points are in the picture has none.
    """
    size = _SIZE.search(svg)
    if size is None:
        return
    width, height = float(size[1]), float(size[2])
    for digits, group in _POINTS.findall(svg):
        content = _content(digits)
        places = _POINT.findall(group)
        if content is None or len(places) != len(content[1]):
            continue
        column, rows = content
        for (x, y), numbers in zip(places, rows, strict=True):
            yield Mark(float(x) / width, float(y) / height, column, *numbers)
    bars = []
    for digits, path in _BAR.findall(svg):
        content = _content(digits)
        coordinates = [float(number) for number in _NUMBER.findall(path)]
        if content is None or not coordinates:
            continue
        column, (name, repeats, value, low, high) = content
        left, right = min(coordinates[::2]) / width, max(coordinates[::2]) / width
        top, bottom = min(coordinates[1::2]) / height, max(coordinates[1::2]) / height
        bars.append(Mark(left, top, column, name, repeats, value, low, high, right - left, bottom - top))
    yield from sorted(bars, key=lambda bar: (round(bar.top, 3), bar.left))


def _content(digits: str) -> tuple[str, list[Any]] | None:
    """Return the column and the numbers that an id holds; None for a group of another program's with such an id."""
    try:
        column, numbers = json.loads(bytes.fromhex(digits))
    except ValueError:
        return None
    return column, numbers
