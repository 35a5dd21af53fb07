"""Text for Rich that is shown as it is."""

from typing import TYPE_CHECKING

from multicard.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text


def plain(text: str, width: int | None = None) -> "Text":
    """Return text in which markup and terminal escapes have no effect, cut to `width` characters."""
    # Commands that start often do without Rich, which takes long to import.
    from rich.text import Text

    return Text(printable(text, width))
