"""Errors that the user can fix: one line that names what, where and what was expected."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from multicard.core.text import printable_lines


class UserError(Exception):
    """Bad input, named in one line; several faults make several lines."""

    def __init__(self, *lines: str):
        super().__init__("\n".join(lines))


class TraceError(UserError):
    """A trace could not be captured, exported or read; the message is one line, whatever the trace holds."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


def in_one_line(error: Exception) -> str:
    """What an error of another library says, at some length; its class where it says nothing."""
    return (getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__)[:300]


@contextmanager
def reported() -> Iterator[None]:
    """End the program with the lines of a `UserError` and exit code 1, or on Ctrl-C; a traceback is for bugs."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes what is left when it exits
        sys.exit(141)  # as a shell reports an end by SIGPIPE
    except UserError as error:
        sys.exit(printable_lines(str(error)))
    except KeyboardInterrupt as error:
        with suppress(OSError):  # the terminal may be gone
            print(printable_lines(str(error)) or "interrupted", file=sys.stderr, flush=True)
        sys.exit(130)  # as a shell reports an end by Ctrl-C
