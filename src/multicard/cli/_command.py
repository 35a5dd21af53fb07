"""What a command is, and the arguments that several commands share."""

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.pipeline import pipeline_folder
from multicard.core.validation import did_you_mean

# Configuration files that need no naming: that of `multicard scale`, and the one of `multicard.experiment.config`.
OF_SCALE, SHIPPED = Path("multicard.yaml"), Path("config/config.yaml")
MEASURE, UNDERSTAND, PREPARE = "Measure", "Understand", "Prepare and share"  # groups of commands


# Exit codes that mean the same of every command; 0 where all is well.
FAILURE_CODE = 1  # wrong usage, an error, a failed run or a regression
CANNOT_TELL_CODE = 2  # what was measured does not answer the question


class Parser(argparse.ArgumentParser):
    """A parser that names a bad value in one line, as `UserError` does; what is missing comes with the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit as `UserError` does; argparse begins what it says of an argument's value with the word."""
        if message.endswith("required: COMMAND"):
            message = f"the command is missing; {self.prog} --help lists them"
        elif not message.startswith("argument "):
            self.print_usage(sys.stderr)
        self.exit(FAILURE_CODE, f"{self.prog}: error: {_with_hint(message)}\n")


def _with_hint(message: str) -> str:
    """Word a value that is none of the choices as a configuration's is, with what was probably meant.

    >>> _with_hint("argument COMMAND: invalid choice: 'sclae' (choose from 'scale', 'run')")
    "argument COMMAND: found 'sclae' (did you mean 'scale'?), expected one of scale, run"
    """
    refused = re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", message)
    if refused is None:
        return message
    argument, value, listed = refused.groups()
    choices = [choice.strip(" '") for choice in listed.split(",")]
    return f"{argument}: found {value!r}{did_you_mean(value, choices)}, expected one of {', '.join(choices)}"


@dataclass(frozen=True)
class Command:
    """A command of the command line: a module, whose name is the command's and whose docstring its help.

    It imports what `run` needs inside functions, so that `multicard --help` and every other command start fast.
    """

    group: str
    example: str  # a command line that uses it
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]  # raises `UserError` for bad input; exits with a code of those above
    # How its usage shows the arguments after `--`, which it gets as the list `trailing`. None where `--` means what it
    # means to argparse.
    trailing: str | None = None

    @property
    def name(self) -> str:
        """Name of its module."""
        return self.run.__module__.rpartition(".")[2]

    @property
    def help(self) -> str:
        """A sentence without its capital letter and full stop, such as "run a configuration"."""
        text = (sys.modules[self.run.__module__].__doc__ or "").strip(" .\n")
        return text[:1].lower() + text[1:]


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the configuration file of an experiment."""
    parser.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", default=OF_SCALE if OF_SCALE.exists() else SHIPPED,
        help=f"configuration file (default: {OF_SCALE} if there is one, else {SHIPPED})",
    )  # fmt: skip


def add_profile(parser: argparse.ArgumentParser, what_for: str = "whose cluster to plan for") -> None:
    """Add the Snakemake profile."""
    parser.add_argument(
        "--profile", type=profile, metavar="FOLDER",
        help=f"Snakemake profile {what_for}: a folder, or the name of yours or a shipped one, such as slurm "
        "(default: this machine)",
    )  # fmt: skip


def profile(named: str) -> Path:
    """Return the folder of a profile, as Snakemake looks for it: a path, else the user's or the shipped one by name."""
    users = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "snakemake", named)
    candidates = (Path(named), users, pipeline_folder() / "profiles" / named)
    return next((folder for folder in candidates if folder.exists()), Path(named))


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the results of an experiment."""
    parser.add_argument(
        "source", type=Path, nargs="?", metavar="RESULTS", default=Path("results"),
        help="results folder, archive of recorded runs, or configuration file, of which the runs that are there count "
        "(default: %(default)s)",
    )  # fmt: skip


def add_device(parser: argparse._ActionsContainer) -> None:
    """Add the kind of device."""
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto (default): cuda if there is a GPU"
    )


def device_of(stated: str) -> str:
    """Return the kind of device that `--device` states, or that this machine has."""
    from multicard.experiment.machine import Machine

    return ("cuda" if Machine.here().gpus else "cpu") if stated == "auto" else stated


def numbers_of_devices(text: str) -> list[int]:
    """Read the value of `--devices`, such as 1,2,4.

    Raises `UserError` if it is anything else, or more than any machine has.
    """
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", text):
        raise UserError(f"--devices: found {text!r}, expected numbers of devices such as 1,2,4")
    return list(dict.fromkeys(map(int, text.split(","))))


def refuse_unwritable(option: str, file: Path) -> None:
    """Refuse a file that an option names and that cannot be written, before anything is measured.

    Raises `UserError` naming why.
    """
    reason = f"{file} is a folder, expected a file" if file.is_dir() else unwritable(file.absolute().parent)
    if reason:
        raise UserError(f"{option}: cannot write to {file}: {reason}")
