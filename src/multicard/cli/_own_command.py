"""The command of a user's own training, as it is typed after `--`."""

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from multicard.core.errors import UserError

PYTHON = re.compile(r"python[0-9.]*")


def parse_command(command: list[str], launcher: str = "auto") -> tuple[str | None, list[str]]:
    """The interpreter that a command names by its path, if any, and the command from the script or `-m` on.

    With the launcher `command` it stays as it is, unless it begins with an interpreter.

    Raises
    ------
    UserError
        If there is no command, it starts with a launcher, or with something else that is no script.

    >>> parse_command(["python", "train.py", "-b", "8"]), parse_command([".venv/bin/python", "-m", "pkg.train"])
    ((None, ['train.py', '-b', '8']), ('.venv/bin/python', ['-m', 'pkg.train']))
    """
    from multicard.workloads.script.launcher import LAUNCHERS

    if not command:
        raise UserError("the command is missing; write it last, after --, such as: -- train.py --epochs 1")
    python, first = None, Path(command[0]).name
    if PYTHON.fullmatch(first):
        python, command = (command[0] if "/" in command[0] else None), command[1:]
        if command[:1] == ["-u"]:  # when its output is written makes no difference to what is measured
            command = command[1:]
    by_module = command[:1] == ["-m"] and len(command) > 1
    is_script = by_module or (command[:1] != [] and command[0].endswith(".py"))
    launchers = LAUNCHERS.values()
    found = (one.name for one in launchers if (command[1] in one.modules if by_module else first in one.programs))
    started_by = next(found, None)
    if launcher == "command" or (is_script and not started_by):
        return python, command
    script = next((at for at, part in enumerate(command) if part.endswith(".py")), None)
    rest = "SCRIPT.py ..." if script is None else shlex.join(command[script:])
    if started_by:
        raise UserError(f"-- {first}: multicard starts the ranks itself; write --launcher {started_by} -- {rest}")
    raise UserError(
        f"-- {shlex.join(command[:1]) or first}: not a Python script, expected SCRIPT.py or -m MODULE (--python FILE "
        "selects another environment); a program that starts its own ranks needs --launcher command"
    )


def as_in_file(name: str) -> str:
    """The name of a parameter of the user's own as the configuration has it.

    >>> as_in_file("Batch-Size")
    'batch_size'
    """
    return name.lower().replace("-", "_")


def resolve_names(command: Sequence[str], own: Collection[str]) -> list[str]:
    """The command with the user's own parameters, named in braces, as the configuration has them.

    Raises `UserError` if a name in braces is no parameter, or a parameter is not in the command.
    """
    from multicard.workloads.script.parameters import GIVEN
    from multicard.workloads.script.template import command_error, renamed

    written = renamed(command, lambda name: as_in_file(name) if as_in_file(name) in own else name)
    if error := command_error(written, own, GIVEN, "--vary {}", "write --vary {}=VALUE,..."):
        raise UserError(error)
    return written
