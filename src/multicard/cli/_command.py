"""What a command is, and the arguments that several commands share."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.text import counted, printable, without_escapes

if TYPE_CHECKING:
    from multicard.api.results import Results

OF_SCALE, SHIPPED = Path("multicard.yaml"), Path("config/config.yaml")  # configuration files that need no naming
MOST_NAMED = 10  # runs with damaged files
MEASURE, UNDERSTAND, PREPARE = "Measure", "Understand", "Prepare and share"  # groups of commands
MOST_DEVICES = 1_000_000  # of a job: more than any machine has


class Parser(argparse.ArgumentParser):
    """A parser that names a bad value in one line, as `UserError` does; what is missing comes with the usage."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2; argparse begins what it says of an argument's value with the word."""
        if message.startswith("argument "):
            self.exit(2, f"{self.prog}: error: {message}\n")
        super().error(message)


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Its module imports what `run` needs inside functions, so that `multicard --help` and every other command start
    fast.

    Attributes
    ----------
    name
        What the user types.
    order
        Place in the help.
    help
        What it does, in a line.
    group, example
        Where it stands in the help, and a command line that uses it.
    add_arguments
        Adds its arguments to its parser.
    run
        Runs it. Raises `UserError` for bad input; exits with 1 where the answer is bad news.
    rest
        What stands after `--`, as its usage shows it; it gets this as the list `rest`. None where `--` has the meaning
        that argparse gives it.
    """

    name: str
    order: int
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    group: str
    example: str
    rest: str | None = None


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the configuration file of an experiment."""
    parser.add_argument(
        "config",
        type=Path,
        nargs="?",
        metavar="CONFIG",
        default=OF_SCALE if OF_SCALE.exists() else SHIPPED,
        help=f"configuration file (default: {OF_SCALE} if there is one, else {SHIPPED})",
    )


def add_profile(parser: argparse.ArgumentParser, what_for: str = "whose cluster to plan for") -> None:
    """Add the Snakemake profile."""
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FOLDER",
        help=f"Snakemake profile {what_for}, such as profiles/slurm (default: this machine)",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the results of an experiment."""
    parser.add_argument(
        "source",
        type=Path,
        nargs="?",
        metavar="RESULTS",
        default=Path("results"),
        help="results folder, archive of recorded runs, or configuration file, of which the runs that are there count, "
        "such as those of multicard tune (default: %(default)s)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="where the runs of a configuration are, if not where it says"
    )


def read_source(arguments: argparse.Namespace) -> "Results":
    """Read the results that `add_results` names."""
    from multicard import read_results

    if arguments.results is None:
        return read_results(arguments.source)
    return read_results(arguments.results, arguments.source)


def name_damaged(damaged: Mapping[str, str]) -> None:
    """Print, beside the output, which files of runs are missing or damaged: a line for each run, of many the first."""
    lines = list(damaged.values())
    if more := lines[MOST_NAMED:]:
        lines[MOST_NAMED:] = [f"{counted(len(more), 'more run')} with missing or damaged files: multicard status"]
    for line in lines:
        print(without_escapes(line), file=sys.stderr)


def add_device(parser: argparse._ActionsContainer) -> None:
    """Add the kind of device."""
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto (default): cuda if there is a GPU"
    )


def device_of(stated: str) -> str:
    """The kind of device that `--device` states, or that this machine has."""
    from multicard.experiment.machine import Machine

    return ("cuda" if Machine.here().gpus else "cpu") if stated == "auto" else stated


def numbers_of_devices(option: str, text: str) -> list[int]:
    """Read the value of an option such as 1,2,4.

    Raises
    ------
    UserError
        If it is anything else.
    """
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise UserError(f"{option}: found {text!r}, expected numbers of devices such as 1,2,4")
    numbers = text.split(",")
    for number in numbers:
        if len(number) > len(str(MOST_DEVICES)) or int(number) > MOST_DEVICES:  # int() refuses thousands of digits
            raise UserError(f"{option}: found {printable(number, 40)}, expected at most {MOST_DEVICES} devices")
    return list(dict.fromkeys(map(int, numbers)))


def duration_s(option: str, text: str) -> float:
    """Read a duration such as 6h, 90min, 2h30m or 45s, in seconds.

    Raises
    ------
    UserError
        If it is anything else, or 0.
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(rf"(?:{number}d)?(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s)?", text)
    parts = found.groups(default="0") if found else ()
    seconds = sum(size * float(part) for size, part in zip((86400, 3600, 60, 1), parts, strict=False))
    if not 0 < seconds < float("inf"):
        raise UserError(f"{option}: found {text!r}, expected a duration such as 6h, 90min, 2h30m or 45s")
    return seconds


def memory_bytes(option: str, text: str) -> float:
    """Read a size of memory such as 80GB (of 10^9 bytes) or 74.5GiB (of 2^30 bytes), in bytes.

    Raises
    ------
    UserError
        If it is anything else, or 0.
    """
    sizes = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(sizes)})", text)
    if not found or not 0 < (size := float(found[1]) * sizes[found[2]]) < float("inf"):
        raise UserError(f"{option}: found {text!r}, expected a size such as 80GB (10^9 bytes) or 74.5GiB (2^30 bytes)")
    return size


def refuse_unwritable(option: str, file: Path) -> None:
    """Refuse a file that an option names and that cannot be written, before anything is measured.

    Raises
    ------
    UserError
        Naming why.
    """
    reason = f"{file} is a folder, expected a file" if file.is_dir() else unwritable(file.absolute().parent)
    if reason:
        raise UserError(f"{option}: cannot write to {file}: {reason}")


def needs_writing(file: Path, overwrite: bool, is_same: Callable[[], bool], more: str = "", kept: str = "") -> bool:
    """Whether a file for `--config-out` is to be written; not where one that is the same is there, unless `overwrite`.

    `more`: the rest of the message about one that is not the same. `kept`: what of it `--overwrite` keeps.

    Raises
    ------
    UserError
        If it cannot be written, or would replace another one.
    """
    refuse_unwritable("--config-out", file)
    if overwrite or not file.exists():
        return True
    if is_same():
        return False
    raise UserError(
        f"{file}: exists and holds something else; --overwrite replaces it{kept}, "
        f"--config-out FILE writes another{more}"
    )


def results_of(config: Path, plain: Path | None = None) -> str:
    """Folder for the results of a configuration file that is written: in one folder two would replace each other's.

    `plain`: the file whose results are just in `results`.
    """
    if plain is not None and config.name == plain.name:
        return "results"
    return f"results-{re.sub('[^A-Za-z0-9._-]+', '-', config.stem)}"
