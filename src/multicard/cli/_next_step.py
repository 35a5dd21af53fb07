"""Command lines in messages, quoted for a shell."""

import shlex
from pathlib import Path


def command_line(*arguments: str | Path) -> str:
    """Return a command of multicard with its arguments, quoted for a shell.

    >>> command_line("run", Path("mein versuch.yaml"), "--retry-failed")
    "multicard run 'mein versuch.yaml' --retry-failed"
    """
    return shlex.join(["multicard", *map(str, arguments)])


def next_step(purpose: str, *arguments: str | Path) -> str:
    """Return the line that says what to do next. It ends with the command, so that this can be copied.

    >>> next_step("for the best configuration", "recommend", "results")
    'next, for the best configuration: multicard recommend results'
    """
    return f"next, {purpose}: {command_line(*arguments)}"
