"""The numbers behind the marks of a figure, kept in its SVG, so that a page can show them where a reader points.

Matplotlib writes a group for the marks of a series. Its id, which no reader sees, holds the numbers; hexadecimal digits
keep it a valid name.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

# A group has the line through the marks, the shape of a mark unless the picture has it already, and the marks.
_GROUP = re.compile(
    r'<g id="marks-([0-9a-f]+)">\s*(?:<path [^>]*/>\s*)?(?:<defs>.*?</defs>\s*)?<g clip-path="[^"]*">(.*?)</g>',
    re.DOTALL,
)
_MARK = re.compile(r'<use [^>]*\bx="([0-9.]+)" y="([0-9.]+)"')
_SIZE = re.compile(r'<svg [^>]*viewBox="0 0 ([0-9.]+) ([0-9.]+)"')


@dataclass(frozen=True)
class Mark:
    """A mark of a figure with its numbers, which are in the unit of their `column`.

    `left` and `top` are its place in the picture, as parts of its width and height. Without an interval, `low` and
    `high` are None.
    """

    left: float
    top: float
    column: str
    series: str
    devices: int
    repeats: int
    value: float
    low: float | None
    high: float | None


def id_of_marks(column: str, rows: pd.DataFrame) -> str:
    """Return the id of a group of marks, one for each row in this order.

    `rows`: `series`, `devices`, `repeats`, and the column of the values with its bounds (`…_low`, `…_high`).
    """
    names = ["series", "devices", "repeats", column, f"{column}_low", f"{column}_high"]
    cells = [[_plain(row.get(name)) for name in names] for row in rows.to_dict("records")]
    return f"marks-{json.dumps([column, cells]).encode().hex()}"


def _plain(value: object) -> object:
    """Return a cell as JSON can hold it; None for NaN."""
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value


def marks_in(svg: str) -> Iterator[Mark]:
    """Yield the marks whose numbers an SVG holds; none of a series of which not all marks are in the picture."""
    size = _SIZE.search(svg)
    if size is None:
        return
    width, height = float(size[1]), float(size[2])
    for digits, group in _GROUP.findall(svg):
        try:
            column, rows = json.loads(bytes.fromhex(digits))
        except ValueError:
            continue  # a group of another program's with such a name
        places = _MARK.findall(group)
        if len(places) != len(rows):
            continue
        for (x, y), (series, devices, repeats, value, low, high) in zip(places, rows, strict=True):
            yield Mark(float(x) / width, float(y) / height, column, series, devices, repeats, value, low, high)
