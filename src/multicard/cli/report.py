"""`multicard report`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from multicard.cli._command import UNDERSTAND, Command, add_results, name_damaged

if TYPE_CHECKING:
    from multicard.api.results import Results

REPORT = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the recorded runs, what to make of them, and where."""
    add = parser.add_argument
    add_results(parser)
    add(
        "--out", type=Path, metavar="FOLDER",
        help="where tables, figures and the report go, an empty folder (default: report-NAME)",
    )  # fmt: skip
    add("--claims", action="store_true", help="print the verdict on each claim of the two papers instead")


def run(arguments: argparse.Namespace) -> None:
    """Draw recorded runs without running anything, and print where the report is."""
    from multicard import read_results
    from multicard.cli._console import console
    from multicard.core.terminal import plain
    from multicard.experiment.config import ARCHIVE

    source: Path = arguments.source
    if not arguments.claims and source.is_dir() and not arguments.out and (source / REPORT).is_file():
        console().print(plain(f"report: {source / REPORT}"), soft_wrap=True)
        return
    results = read_results(source)
    if arguments.claims:
        print_claims(results)
        return
    name = source.resolve().name.removesuffix(ARCHIVE).removesuffix(".yaml")
    drawn = results.draw(arguments.out or Path(f"report-{name}"))
    name_damaged(results.damaged)
    console().print(plain(f"runs: {drawn.runs}, figures: {drawn.figures}, report: {drawn.report}"), soft_wrap=True)


def print_claims(results: "Results") -> None:
    """Print the verdict on each claim, with the numbers."""
    from multicard.cli._console import console
    from multicard.core.terminal import plain

    terminal = console()
    judged = results.claims()
    labels = {"claim_text": "", "refuted_if": "Refuted if: ", "finding": "", "conditions": ""}
    for each in judged.to_dict("records"):
        terminal.print(f"[bold]{each['claim']}[/bold]: {each['verdict']}", highlight=False)
        for column, label in labels.items():
            if each[column]:
                terminal.print(plain(f"  {label}{each[column]}"), soft_wrap=True)
    counts = judged["verdict"].value_counts(sort=False)
    terminal.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), highlight=False)


COMMAND = Command(
    "report",
    60,
    "make figures and the report of recorded runs, or print the verdicts on claims",
    add_arguments,
    run,
    UNDERSTAND,
    "multicard report mine.tar.gz --out mine",
)
