"""What a command is, the arguments that several commands share, and what a command may replace.

No command replaces what multicard did not write, unless the user states --overwrite:

- A file that an option names has to be new: it may hold work of the user, or older results (`refuse_existing`).
- A file that multicard wrote may be replaced where each call is meant to write it again, as in CI. The file has to show
  by its content that multicard wrote it, or to have that content already (`refuse_different`).
- A folder of results belongs to multicard, which brings its files up to date, if runs or limits of machines by
  multicard are in it (`refuse_foreign_results`).
"""

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
from multicard.core.layout import RUN, machine_records
from multicard.core.pipeline import pipeline_folder
from multicard.core.validation import did_you_mean

# Configuration files that commands use if none is named: the one that `multicard scale` writes, else the one that is
# shipped in a clone.
OF_SCALE, SHIPPED = Path("multicard.yaml"), Path("config/config.yaml")
MEASURE, UNDERSTAND, PREPARE = "Measure", "Understand", "Prepare and share"  # groups of commands
# What to do about a file that exists, for commands that have this option.
OVERWRITE_REMEDY = "--overwrite replaces it"


# Exit codes that have the same meaning for every command; 0 means that all is well.
FAILURE_CODE = 1  # wrong usage, an error, a failed run or a regression
CANNOT_TELL_CODE = 2  # what was measured does not answer the question


class Parser(argparse.ArgumentParser):
    """A parser that reports a bad value in one line, as `UserError` is reported, and other faults with the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with `FAILURE_CODE` and the message, without the usage if the message is about a value.

        argparse begins such messages with "argument".
        """
        if message.endswith("required: COMMAND"):
            message = f"the command is missing; {self.prog} --help lists them"
        elif not message.startswith("argument "):
            self.print_usage(sys.stderr)
        self.exit(FAILURE_CODE, f"{self.prog}: error: {_with_hint(message)}\n")


def _with_hint(message: str) -> str:
    """Return the message, worded as for a configuration if a value is not one of the choices; else unchanged.

    The value that was probably meant is added.

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
    """A command of the command line, defined by a module: its name is the command's name, its docstring is the help.

    The module imports what `run` needs inside functions, so that `multicard --help` and all other commands start fast.
    """

    group: str
    example: str  # a command line that uses it
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]  # raises `UserError` for bad input; may exit with one of the codes above
    # Text of the usage for the arguments after `--`, which `run` gets as the list `trailing`. None if the command takes
    # no such arguments; then `--` has its usual meaning for argparse.
    trailing: str | None = None

    @property
    def name(self) -> str:
        """The name of the command, which is that of its module."""
        return self.run.__module__.rpartition(".")[2]

    @property
    def help(self) -> str:
        """A sentence without its capital letter and full stop, such as "run a configuration"."""
        text = (sys.modules[self.run.__module__].__doc__ or "").strip(" .\n")
        return text[:1].lower() + text[1:]


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the argument CONFIG, the configuration file of an experiment."""
    parser.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG", default=OF_SCALE if OF_SCALE.exists() else SHIPPED,
        help=f"configuration file (default: {OF_SCALE} if there is one, else {SHIPPED})",
    )  # fmt: skip


def add_profile(parser: argparse.ArgumentParser, what_for: str = "of the cluster to plan for") -> None:
    """Add the option --profile, a Snakemake profile. `what_for`: words of its help."""
    parser.add_argument(
        "--profile", type=profile, metavar="FOLDER",
        help=f"Snakemake profile {what_for}: a folder, or the name of a profile, such as slurm (default: this machine)",
    )  # fmt: skip


def profile(named: str) -> Path:
    """Return the folder of a profile as Snakemake finds it: the path, else the user's or the shipped one of that name.

    If none exists, return the path as stated.
    """
    users = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "snakemake", named)
    candidates = (Path(named), users, pipeline_folder() / "profiles" / named)
    return next((folder for folder in candidates if folder.exists()), Path(named))


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the argument RESULTS, the results of an experiment."""
    parser.add_argument(
        "source", type=Path, nargs="?", metavar="RESULTS", default=Path("results"),
        help="results folder, archive, or configuration file (its finished runs are used); default: %(default)s",
    )  # fmt: skip


def add_device(parser: argparse._ActionsContainer) -> None:
    """Add the option --device, the kind of device."""
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto (default): cuda if there is a GPU"
    )


def device_of(stated: str) -> str:
    """Return the kind of device that `--device` states; for "auto", cuda if this machine has a GPU, else cpu."""
    from multicard.programs.machine import Machine

    return ("cuda" if Machine.here().gpus else "cpu") if stated == "auto" else stated


def numbers_of_devices(text: str) -> list[int]:
    """Return the numbers in the value of `--devices`, such as 1,2,4, each once.

    Raises `UserError` if the text is anything else, or a number has more than six digits.
    """
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", text):
        raise UserError(f"--devices: found {text!r}, expected numbers of devices such as 1,2,4")
    return list(dict.fromkeys(map(int, text.split(","))))


def refuse_unwritable(option: str, file: Path) -> None:
    """Raise `UserError` with the reason if the file that an option names cannot be written.

    Called before anything is measured, so that no measurement is lost.
    """
    reason: str | None
    if file.is_dir():
        reason = f"{file} is a folder, expected a file"
    elif file.exists() and not file.is_file():
        reason = f"{file} is a device or a pipe, expected a file"
    else:
        reason = unwritable(file.absolute().parent)
    if reason:
        raise UserError(f"{option}: cannot write to {file}: {reason}")


def refuse_existing(option: str, *paths: Path, remedy: str = "delete it, or state another one") -> None:
    """Raise `UserError` if a file or folder that an option names exists. Called before anything is made."""
    for path in paths:
        if path.exists():
            raise UserError(f"{option}: {path} exists, expected a new name; {remedy}")


def refuse_different(file: Path, text: str, remedy: str) -> None:
    """Raise `UserError` if a file exists and has another content than `text`, which is to be written to it."""
    if file.exists() and file.read_bytes() != text.encode():
        raise UserError(f"{file}: exists and differs; {remedy}")


def refuse_foreign_results(results: Path, remedy: str) -> None:
    """Raise `UserError` if the folder for results has content, but neither runs nor limits of machines by multicard.

    Called if the configuration that names the folder is new: a run that was interrupted leaves a folder without runs.
    """
    has_content = results.is_dir() and any(results.iterdir())
    if has_content and not any(results.glob(f"runs/*/{RUN}")) and not machine_records(results):
        raise UserError(f"{results}: not results of multicard; {remedy}")
