"""Command lines in messages, quoted for a shell."""

import re
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


def with_repeats(config: Path, repeats: int, *options: str) -> str | None:
    """Return the line that says how to repeat each run of a configuration file, whose runs have no repeats.

    Its command sets the repeats in the file, so the file must state `repeats: 1` on a line of its own for each of its
    scenarios, as that of `multicard scale` does. If it does not, return None. `options`: of the command that runs it.
    """
    from multicard.config.load import read_config
    from multicard.core.system import read_or_none

    text = read_or_none(lambda: config.read_text(encoding="utf-8")) or ""
    content, _ = read_config(config) if text else ({}, "")
    stated = re.findall(r"^ +repeats: 1$", text, re.M)
    if not stated or len(stated) != len(content["scenarios"]):
        return None
    change = shlex.join(["sed", "-i", f"s/repeats: 1$/repeats: {repeats}/", str(config)])
    purpose = f"for intervals by {repeats} repeats (finished runs are kept)"
    return f"next, {purpose}: {change} && {command_line('run', config, *options)}"
