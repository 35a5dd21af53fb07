"""`multicard figures`."""

import argparse

from multicard.cli._command import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to print."""
    parser.add_argument("--list", action="store_true", help="print the catalog of figures, as without arguments")


def run(arguments: argparse.Namespace) -> None:
    """Print the catalog of figures."""
    from rich.table import Table

    from multicard.cli._console import console
    from multicard.experiment.figures import FIGURES

    table = Table("Figure", "Question", "Shows", "Needs", "Paper")
    for name, figure in FIGURES.items():
        table.add_row(name, figure.question, figure.caption, ", ".join(figure.needs), figure.answers or "")
    table.show_lines = True
    console().print(table, highlight=False)


COMMAND = Command("figures", 80, "list the figures that a configuration can request", add_arguments, run)
