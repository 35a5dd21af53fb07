"""Lines on the console, and on a terminal a last line that changes."""

import shutil
import sys

from multicard.core.text import folded, printable, printable_lines


class Terminal:
    """Prints lines to standard output and errors to standard error; made by `Console`.

    `keeps_state`: on a terminal, standard output ends with a line that `show` replaces.
    """

    def __init__(self, keeps_state: bool) -> None:
        self.is_live = keeps_state and sys.stdout.isatty()
        self._state = ""  # the last line, as it stands on the terminal

    def line(self, text: str) -> None:
        """Print a line that stays; on a terminal it breaks between words."""
        self.show("")
        shown = printable(text)
        if sys.stdout.isatty():
            shown = folded(shown, shutil.get_terminal_size().columns)
        print(_encodable(shown, sys.stdout), flush=True)

    def error(self, text: str) -> None:
        """Print lines beside the output."""
        self.show("")
        print(_encodable(printable_lines(text), sys.stderr), file=sys.stderr, flush=True)

    def show(self, state: str) -> None:
        """Replace the last line of a terminal; elsewhere do nothing."""
        if not self.is_live or state == self._state:
            return
        columns = shutil.get_terminal_size().columns - 1
        print("\r\x1b[K" + _encodable(printable(state, columns), sys.stdout), end="", flush=True)
        self._state = state


def _encodable(text: str, stream: object) -> str:
    """Return the text with a mark for each character that the encoding of the stream has not."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
