"""Errors that the user can fix. Each fault is one line that names the place, what is wrong, and what was expected."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from multicard.core.text import printable_lines


class UserError(Exception):
    """A problem that the user can fix, with one line per fault; raised anywhere, printed by `reported`."""

    def __init__(self, *lines: str):
        super().__init__("\n".join(lines))


class TraceError(UserError):
    """A trace that could not be captured, exported or read. Line ends in the message become blanks."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def in_one_line(error: Exception) -> str:
    """Return the message of another library's error in one line of 300 characters at most.

    For an error of the operating system it is the system's text; for an error without a message the name of its class.
    """
    system_message = getattr(error, "strerror", None)
    message = system_message or " ".join(str(error).split()) or type(error).__name__
    return message[:300]


@contextmanager
def reported() -> Iterator[None]:
    """End the program without a traceback if the block raises one of three errors, which are no bugs.

    A `UserError` is printed, with exit code 1. Ctrl-C (`KeyboardInterrupt`) has the exit code 130. If the reader of the
    output has ended (`BrokenPipeError`), the exit code is 141.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # When Python exits it writes buffered output, which would fail again. So the output goes to /dev/null now.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)  # the code that a shell reports for an end by SIGPIPE
    except UserError as error:
        sys.exit(printable_lines(str(error)))
    except KeyboardInterrupt as error:
        # Printing fails if the terminal is closed.
        with suppress(OSError):
            print(printable_lines(str(error)) or "interrupted", file=sys.stderr, flush=True)
        sys.exit(130)  # the code that a shell reports for an end by Ctrl-C
