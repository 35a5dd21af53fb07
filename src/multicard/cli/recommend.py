"""Say how much faster more GPUs are or would be, where the step goes, and what to try."""

import argparse

from multicard.cli._command import UNDERSTAND, Command, add_results
from multicard.cli._predict import print_predictions
from multicard.core.text import without_escapes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to print, and the results."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--devices", metavar="N,...", help="predict these numbers of devices instead, such as 8,16")
    either.add_argument("--json", action="store_true", help="print the table of choices as JSON")
    either.add_argument("--verbose", action="store_true", help="add the table of choices, and all options")
    add_results(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print recommendations, or the table of choices as JSON; with numbers of devices what these would gain."""
    if arguments.devices:
        print_predictions(arguments)
        return
    from multicard import read_results

    results = read_results(arguments.source)
    if arguments.json:
        print(f'{{"configurations": {results.choices().to_json(orient="records", indent=2)}}}')
        return
    print(without_escapes(results.recommendations(arguments.verbose)), end="")


COMMAND = Command(50, UNDERSTAND, "multicard recommend results --devices 8,16", add_arguments, run)
