"""Errors that the user can fix: one line that names what is wrong, where, and what was expected."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from multicard.core.text import printable_lines


class UserError(Exception):
    """Bad input of a user, with one line per fault; raised anywhere, printed by `reported`."""

    def __init__(self, *lines: str):
        super().__init__("\n".join(lines))


class TraceError(UserError):
    """A trace that could not be captured, exported or read; the message is one line, whatever the trace holds."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def in_one_line(error: Exception) -> str:
    """Return the message of another library's error in one line of limited length; its class if it has none."""
    system_message = getattr(error, "strerror", None)
    message = system_message or " ".join(str(error).split()) or type(error).__name__
    return message[:300]


@contextmanager
def reported() -> Iterator[None]:
    """End the program with the lines of a `UserError` and exit code 1, or on Ctrl-C; a traceback is for bugs."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes what it has buffered when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)  # a shell's code for an end by SIGPIPE
    except UserError as error:
        sys.exit(printable_lines(str(error)))
    except KeyboardInterrupt as error:
        # The terminal may be gone.
        with suppress(OSError):
            print(printable_lines(str(error)) or "interrupted", file=sys.stderr, flush=True)
        sys.exit(130)  # a shell's code for an end by Ctrl-C
