"""Make text that Rich shows literally."""

from typing import TYPE_CHECKING

from multicard.core.text import printable

if TYPE_CHECKING:
    from rich.text import Text


def plain(text: str, width: int | None = None) -> "Text":
    """Return text in which markup and terminal escapes have no effect, cut to `width` characters (None: not cut)."""
    # Rich is imported here because it takes long to import, and commands that start often do not use it.
    from rich.text import Text

    return Text(printable(text, width))
