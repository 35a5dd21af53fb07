"""Text on the terminal."""

from rich.text import Text

from multicard.core.text import printable


def plain(text: str, width: int | None = None) -> Text:
    """Text shown literally: markup and terminal escapes have no effect; cut to a width."""
    return Text(printable(text, width))
