"""Text on the terminal."""

from rich.text import Text


def plain(text: str, width: int | None = None) -> Text:
    """Text as it is: markup and terminal escapes have no effect; cut to a width."""
    shown = "".join(character if character.isprintable() else "�" for character in text)
    if width is not None and len(shown) > width:
        shown = f"{shown[: width - 1]}…"
    return Text(shown)
