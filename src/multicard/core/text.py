"""Text from files as it may be shown anywhere."""


def printable(text: str, longest: int | None = None) -> str:
    r"""Text with a mark in the place of each character that cannot be printed, cut to a length.

    >>> printable("a\x1b[1mb"), printable("abcdef", 4)
    ('a�[1mb', 'abc…')
    """
    shown = "".join(character if character.isprintable() else "�" for character in text)
    return shown if longest is None or len(shown) <= longest else f"{shown[: longest - 1]}…"
