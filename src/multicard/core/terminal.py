"""Text on the terminal."""

from typing import TYPE_CHECKING

from multicard.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text


def plain(text: str, width: int | None = None) -> "Text":
    """Text shown literally: markup and terminal escapes have no effect; cut to a width."""
    from rich.text import Text  # which commands that start often do without

    return Text(printable(text, width))
