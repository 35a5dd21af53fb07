"""Text on the terminal."""

from typing import Any

from rich.text import Text

from multicard.core.text import printable
from multicard.core.units import heading, show


def plain(text: str, width: int | None = None) -> Text:
    """Text as it is: markup and terminal escapes have no effect; cut to a width."""
    return Text(printable(text, width))


def quantity(column: str, value: Any) -> tuple[str, str]:
    """Heading of a column, and a value of it with its unit."""
    return heading(column), show(column, value)
