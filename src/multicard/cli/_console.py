"""Tables and lines on the terminal."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multicard.core.terminal import plain
from multicard.core.text import cut_apart, printable
from multicard.core.units import heading, show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDE = 220  # columns of a table that goes to a file or a pipe
NAME_WIDTH = 70

Rows = Sequence[dict[str, Any]]


def console(stderr: bool = False) -> "Console":
    """Return the console for standard output, or for errors."""
    from rich.console import Console

    return Console(width=None if stderr or sys.stdout.isatty() else WIDE, stderr=stderr)


def say(*parts: "str | Table", stderr: bool = False) -> None:
    """Print lines of text, as they are, and tables."""
    terminal = console(stderr)
    for part in parts:
        if isinstance(part, str):
            terminal.print(plain(part), soft_wrap=True)
        else:
            terminal.print(part)


def rows_table(rows: Rows, title: str, caption: str, longest: int) -> "Table":
    """Show the first rows of a table, without columns that are empty throughout, or the name of the only report."""
    from rich.table import Table

    several = len({row.get("report") for row in rows}) > 1
    rows = rows[:longest]
    shown = [
        column for column in rows[0] if any(row[column] is not None for row in rows) and (column != "report" or several)
    ]
    table = Table(title=plain(title), caption=plain(caption), title_justify="left", caption_justify="left")
    for column in shown:
        numbers = all(isinstance(row[column], int | float | None) for row in rows)
        table.add_column(plain(heading(column)), justify="right" if numbers else "left", overflow="fold")
    columns = [_cut([show(column, row[column]) for row in rows], NAME_WIDTH) for column in shown]
    for cells in zip(*columns, strict=True):
        table.add_row(*map(plain, cells))
    return table


def text_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], longest: int | None = None
) -> "Table":
    """Show rows of text, of which each cell may have a length."""
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
    """Cut the cells of a column so that unequal ones stay unequal, mangled names of kernels in a readable form."""
    from multicard.trace.kernel_names import readable_name

    return cut_apart([printable(readable_name(name)) for name in names], longest)
