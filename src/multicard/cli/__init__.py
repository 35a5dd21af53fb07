"""The console command `multicard`: each module of this package that has a `COMMAND` is one of its commands."""

import argparse
import os

from multicard import __version__
from multicard.cli._command import Command
from multicard.core.errors import reported
from multicard.core.registry import Registry

COMMANDS: Registry[Command] = Registry("multicard.cli", "COMMAND")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 1 and a line per fault where the input is refused."""
    os.environ["MPLBACKEND"] = "Agg"  # figures go to files
    parser = argparse.ArgumentParser(prog="multicard", description="Plan and check experiments, analyze traces.")
    parser.add_argument("--version", action="version", version=f"multicard {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    chosen = parser.parse_args(arguments)
    with reported():
        chosen.run(chosen)
