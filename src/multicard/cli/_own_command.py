"""The command of a user's own training, as it is typed after `--`."""

import difflib
import re
import shlex
from collections.abc import Collection
from pathlib import Path

from multicard.core.errors import UserError

OWN_NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # may have dashes and capitals, which the file does not
BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
PYTHON = re.compile(r"python[0-9.]*")

# What starts ranks, by the name of its program, and by that of its module.
LAUNCHERS = {name: name for name in ("torchrun", "accelerate", "deepspeed", "srun", "mpirun")} | {"mpiexec": "mpirun"}
MODULES = {
    "torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed",
}  # fmt: skip
RUNNERS = ("uv", "poetry", "conda", "pixi", "hatch", "pdm")  # of which the interpreter is to be named


def understood(command: list[str], launcher: str = "auto") -> tuple[str | None, list[str]]:
    """The interpreter that a command names by its path, if any, and the command from the script or `-m` on.

    With the launcher `command` it stays as it is, unless it begins with an interpreter.

    Raises
    ------
    UserError
        If there is no command, it starts with a launcher, or with something else that is no script.

    >>> understood(["python", "train.py", "-b", "8"]), understood([".venv/bin/python", "-m", "pkg.train"])
    ((None, ['train.py', '-b', '8']), ('.venv/bin/python', ['-m', 'pkg.train']))
    """
    if not command:
        raise UserError("the command is missing; write it last, after --, such as: -- train.py --epochs 1")
    python, first = None, Path(command[0]).name
    if PYTHON.fullmatch(first):
        python, command = (command[0] if "/" in command[0] else None), command[1:]
    by_module = command[:1] == ["-m"] and len(command) > 1
    is_script = by_module or (command[:1] != [] and command[0].endswith(".py"))
    started_by = MODULES.get(command[1]) if by_module else LAUNCHERS.get(first)
    script = next((at for at, part in enumerate(command) if part.endswith(".py")), None)
    rest = "SCRIPT.py ..." if script is None else shlex.join(command[script:])
    if launcher == "command" or (is_script and not started_by):
        return python, command
    if started_by:
        raise UserError(f"-- {first}: multicard starts the ranks itself; write --launcher {started_by} -- {rest}")
    if first in RUNNERS:
        raise UserError(f"-- {first}: name the interpreter of that environment; write --python FILE -- {rest}")
    raise UserError(
        f"-- {shlex.join(command[:1]) or first}: is no script, expected SCRIPT.py or -m MODULE; a program that starts "
        "its ranks itself needs --launcher command"
    )


def with_own_names(part: str, own: Collection[str]) -> str:
    """Write the names of own parameters in braces with underscores, as the configuration has them."""

    def named(found: re.Match[str]) -> str:
        name = (found[1] or "").lower().replace("-", "_")
        return f"{{{name}}}" if name in own else found[0]

    return BRACES.sub(named, part)


def check_command(command: list[str], own: list[str]) -> None:
    """Check a command against the names of the user's own parameters.

    Raises
    ------
    UserError
        If the script is not there, a name in braces is no parameter, or a parameter is not in the command.
    """
    from multicard.workloads.script.parameters import GIVEN
    from multicard.workloads.script.template import names_in

    if command[0].endswith(".py") and not BRACES.search(command[0]) and not Path(command[0]).is_file():
        raise UserError(f"{command[0]}: no such file in {Path.cwd()}")
    try:
        named = names_in(command)
    except ValueError as error:
        raise UserError(f"-- {error}") from error
    for name in named:
        if name not in (*own, *GIVEN):
            close = difflib.get_close_matches(name, [*own, *GIVEN], n=1)
            do = f"did you mean {{{close[0]}}}?" if close else "write {{ and }} for braces"
            if not close and re.fullmatch(OWN_NAME, name):
                do = f"write --vary {name}=VALUE,..., or {{{{ and }}}} for braces"
            raise UserError(f"{{{name}}}: not named by --vary, and none of {', '.join(GIVEN)}; {do}")
    for name in own:
        if name in GIVEN:
            raise UserError(f"--vary {name}: multicard gives {{{name}}} its value; choose another name")
        if name not in named:
            raise UserError(f"--vary {name}: the command does not use it; write {{{name}}} where its value belongs")
