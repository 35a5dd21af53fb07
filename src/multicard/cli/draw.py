"""`multicard draw`."""

import argparse
from pathlib import Path

from multicard.cli._command import Command, name_damaged


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the recorded runs, and where to draw them."""
    parser.add_argument("source", type=Path, help="an archive, or the results folder of an experiment")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", required=True, help="output folder, which must be empty if it exists"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration of the experiment, for a results folder"
    )


def run(arguments: argparse.Namespace) -> None:
    """Draw recorded runs, and print where the report is."""
    from multicard import read_results
    from multicard.cli._console import console
    from multicard.core.terminal import plain

    results = read_results(arguments.source, arguments.config)
    drawn = results.draw(arguments.out)
    name_damaged(results.damaged)
    console().print(plain(f"runs: {drawn.runs}, figures: {drawn.figures}, report: {drawn.report}"), soft_wrap=True)


COMMAND = Command(
    "draw",
    70,
    "plot recorded runs: figures, tables, conclusions and the report, without running anything",
    add_arguments,
    run,
)
