"""Tables and text on the terminal."""

import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from multicard.core.terminal import plain
from multicard.core.units import heading, show

WIDE = 220  # columns of a table that goes to a file or a pipe
NAME_WIDTH = 70

Rows = Sequence[dict[str, Any]]


def console() -> Console:
    """Give the console for standard output."""
    return Console(width=None if sys.stdout.isatty() else WIDE)


def rows_table(rows: Rows, title: Text, caption: str, longest: int) -> Table:
    """Show the first rows of a table, without columns that are empty throughout, or the name of the only report."""
    several = len({row.get("report") for row in rows}) > 1
    rows = rows[:longest]
    shown = [
        column for column in rows[0] if any(row[column] is not None for row in rows) and (column != "report" or several)
    ]
    table = Table(title=title, caption=plain(caption), title_justify="left", caption_justify="left")
    for column in shown:
        numbers = all(isinstance(row[column], int | float | None) for row in rows)
        table.add_column(plain(heading(column)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(plain(show(column, row[column]), NAME_WIDTH) for column in shown))
    return table


def text_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], longest: int | None = None) -> Table:
    """Show rows of text, of which each may have a length."""
    table = Table(*headings, title=plain(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        table.add_row(*(plain(cell, longest) for cell in row))
    return table
