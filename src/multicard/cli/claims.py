"""`multicard claims`."""

import argparse
from pathlib import Path

from multicard.cli._command import Command, add_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the claims and the results."""
    parser.add_argument(
        "--claims", type=Path, metavar="FILE", help="claims and their tests (default: the papers' claims)"
    )
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the verdict on each claim, with the numbers."""
    from multicard import read_results
    from multicard.cli._console import console
    from multicard.core.terminal import plain

    terminal = console()
    judged = read_results(arguments.results, arguments.config).claims(arguments.claims)
    for each in judged.to_dict("records"):
        terminal.print(f"[bold]{each['claim']}[/bold]: {each['verdict']}", highlight=False)
        for column, label in (
            ("claim_text", ""), ("refuted_if", "Refuted if: "), ("finding", ""), ("conditions", ""),
            ("other_evidence", ""),
        ):  # fmt: skip
            if each[column]:
                terminal.print(plain(f"  {label}{each[column]}"), soft_wrap=True)
    counts = judged["verdict"].value_counts(sort=False)
    terminal.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), highlight=False)


COMMAND = Command("claims", 90, "check the papers' claims against the measurements", add_arguments, run)
