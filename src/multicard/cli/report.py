"""Make figures and the report of recorded runs, or a page for an application for computing time."""

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.cli._command import UNDERSTAND, Command, add_results, refuse_existing, refuse_unwritable
from multicard.cli._console import say
from multicard.core.errors import UserError

if TYPE_CHECKING:
    from multicard.api.results import ExperimentResults

REPORT, PROPOSAL = "report.html", Path("proposal.md")
# Units in which the work of a run may be counted, with the help of their options: the keys of
# `multicard.answers.choice.applied.WORK`.
WORK = {
    "samples": "samples (images) per run, such as 1e9",
    "tokens": "tokens per run, if they were counted",
    "steps": "optimizer steps per run",
    "epochs": "passes over the data per run",
}
# Options that need --proposal.
APPLIED = (*WORK, "runs", "devices", "efficiency", "gpus-per-node", "scenario")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the recorded runs, what to make of them, and where to write it."""
    add = parser.add_argument
    add_results(parser)
    add(
        "--out", type=Path, metavar="FOLDER",
        help="empty folder for tables, figures and the report (default: report-NAME)",
    )  # fmt: skip
    add(
        "--width", choices=("column", "page"),
        help="width of the figures: 3.3 inches (a column of a journal) or 7 (default: as configured)",
    )  # fmt: skip
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--claims", action="store_true", help="instead print the verdict on each claim of the two papers"
    )
    either.add_argument(
        "--proposal", type=Path, nargs="?", const=PROPOSAL, metavar="FILE",
        help="instead write one page for an application for computing time, in Markdown, to a new file (default: "
        f"{PROPOSAL})",
    )  # fmt: skip
    group = parser.add_argument_group("the request (--proposal)")
    work = group.add_mutually_exclusive_group()
    for name, what in WORK.items():
        work.add_argument(f"--{name}", type=_positive(float), metavar="N", help=what)
    group.add_argument("--runs", type=_positive(int), metavar="N", help="number of runs (default: 1)")
    group.add_argument(
        "--devices", type=_positive(int), metavar="N",
        help="number of GPUs or processes; it must have been measured (default: the most that are efficient)",
    )  # fmt: skip
    group.add_argument(
        "--efficiency", type=_positive(float), metavar="SHARE",
        help="minimum parallel efficiency for recommending a number of devices (default: 0.7)",
    )  # fmt: skip
    group.add_argument(
        "--gpus-per-node", type=_positive(int), metavar="N",
        help="GPUs per node of the requested machine (default: as the measured jobs saw them)",
    )  # fmt: skip
    group.add_argument("--scenario", metavar="NAME", help="use only this scenario's runs (default: all)")


def run(arguments: argparse.Namespace) -> None:
    """Draw recorded runs without running anything, and print where the report is.

    With --claims or --proposal, do that instead. If a results folder has a report already, and neither --out nor
    --width is given, only print where it is.
    """
    from multicard import read_results
    from multicard.config.experiment import ARCHIVE

    source: Path = arguments.source
    stated = {name: value for name in APPLIED if (value := getattr(arguments, name.replace("-", "_"))) is not None}
    if arguments.proposal:
        print_proposal(arguments, stated)
        return
    if stated:
        raise UserError(f"--{next(iter(stated))}: stated without --proposal, expected both")
    is_to_draw = arguments.out or arguments.width
    if not arguments.claims and not is_to_draw and source.is_dir() and (source / REPORT).is_file():
        say(f"report: {source / REPORT}")
        return
    results = read_results(source)
    if arguments.claims:
        print_claims(results)
        return
    name = source.resolve().name.removesuffix(ARCHIVE).removesuffix(".yaml")
    drawn = results.draw(arguments.out or Path(f"report-{name}"), arguments.width)
    say(f"runs: {drawn.runs}, figures: {drawn.figures}, report: {drawn.report}")


def print_proposal(arguments: argparse.Namespace, stated: Mapping[str, Any]) -> None:
    """Write the page for an application, and print the names of its files. `stated`: values of `APPLIED`."""
    from multicard import read_results
    from multicard.answers.choice.applied import Request
    from multicard.report.proposal.document import check_markdown, figure_file

    check_markdown(arguments.proposal)
    refuse_unwritable("--proposal", arguments.proposal)
    refuse_existing("--proposal", arguments.proposal, figure_file(arguments.proposal))
    work = next((name for name in WORK if name in stated), None)
    if work is None:
        raise UserError(f"--proposal: the work of a run is not stated, expected one of --{', --'.join(WORK)}")
    request = Request(
        stated[work], work, stated.get("runs", 1), stated.get("devices"), stated.get("gpus-per-node"),
        **({"least_efficiency": stated["efficiency"]} if "efficiency" in stated else {}),
    )  # fmt: skip
    if request.least_efficiency > 1:
        raise UserError(f"--efficiency: found {request.least_efficiency:g}, expected a share, at most 1")
    results = read_results(arguments.source)
    written = results.proposal(arguments.proposal, request, stated.get("scenario"))
    say(f"proposal: {', '.join(map(str, written))}")


def _positive(kind: type) -> Callable[[str], Any]:
    """Return a function that reads a number above zero, of type `kind`; as an int, `1e6` is read, too."""

    def read(text: str) -> Any:
        value = float(text)
        if not 0 < value < math.inf or kind(value) != value:
            raise ValueError(text)
        return kind(value)

    read.__name__ = "positive number" if kind is float else "positive whole number"
    return read


def print_claims(results: "ExperimentResults") -> None:
    """Print the verdict on each claim with its findings, and how often each verdict was given."""
    judged = results.claims()
    labels = {"claim_text": "", "refuted_if": "Refuted if: ", "finding": "", "conditions": ""}
    for row in judged.to_dict("records"):
        details = [f"  {label}{row[column]}" for column, label in labels.items() if row[column]]
        say(f"{row['claim']}: {row['verdict']}", *details)
    counts = judged["verdict"].value_counts(sort=False)
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


COMMAND = Command(UNDERSTAND, "multicard report mine.tar.gz --out mine", add_arguments, run)
