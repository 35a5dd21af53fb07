"""Print tables and lines on the terminal."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from multicard.core.terminal import plain
from multicard.core.text import cut_apart, folded, printable
from multicard.core.units import heading, show
from multicard.core.values import Cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 220  # characters of a line if the output goes to a file or a pipe
NAME_WIDTH = 70  # characters of a name in a table; longer ones are cut

Rows = Sequence[Mapping[str, Cell]]


def console(stderr: bool = False) -> "Console":
    """Return the console for standard output, or for standard error."""
    from rich.console import Console

    return Console(width=None if stderr or sys.stdout.isatty() else WIDE, stderr=stderr)


def say(*parts: "str | Table", stderr: bool = False) -> None:
    """Print tables, and lines of text without interpreting markup in them.

    On a terminal, lines break between words.
    """
    terminal = console(stderr)
    for part in parts:
        if isinstance(part, str):
            text = folded(printable(part), terminal.width) if terminal.is_terminal else part
            for line in text.split("\n"):
                terminal.print(plain(line), soft_wrap=True)
        else:
            terminal.print(part)


def rows_table(rows: Rows, title: str, caption: str, longest: int) -> "Table":
    """Return a table for the terminal with the first `longest` of `rows`, which must not be empty.

    Columns that are empty in these rows are left out, and so is the column `report` if there is only one report.
    """
    from rich.table import Table

    reports = {row.get("report") for row in rows}
    rows = rows[:longest]
    shown = [column for column in rows[0] if any(row[column] is not None for row in rows)]
    if len(reports) == 1 and "report" in shown:
        shown.remove("report")
    table = Table(title=plain(title), caption=plain(caption), title_justify="left", caption_justify="left")
    columns: list[list[str]] = []
    for column in shown:
        values = [row[column] for row in rows]
        has_numbers = all(isinstance(value, int | float | None) for value in values)
        table.add_column(plain(heading(column)), justify="right" if has_numbers else "left", overflow="fold")
        texts = [show(column, value) for value in values]
        columns.append(_cut(texts, NAME_WIDTH))
    for cells in zip(*columns, strict=True):
        table.add_row(*map(plain, cells))
    return table


def text_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], longest: int | None = None
) -> "Table":
    """Return a table of text for the terminal. Cells are cut to `longest` characters; None does not cut them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*headings, title=plain(title), title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    columns: list[Sequence[str]] = list(zip(*rows, strict=True))
    if longest is not None:
        columns = [_cut(cells, longest) for cells in columns]
    for cells in zip(*columns, strict=True):
        table.add_row(*map(plain, cells))
    return table


def _cut(names: Sequence[str], longest: int) -> list[str]:
    """Return cells cut to a length so that different ones stay different; mangled names of kernels become readable."""
    from multicard.trace.kernel_names import readable_name

    return cut_apart([printable(readable_name(name)) for name in names], longest)
