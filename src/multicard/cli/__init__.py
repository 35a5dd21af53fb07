"""The console command `multicard`: each module of this package that has a `COMMAND` is one of its commands."""

import os
import sys

from multicard import __version__
from multicard.cli._command import Command, Parser
from multicard.core.errors import reported
from multicard.core.registry import Registry

COMMANDS: Registry[Command] = Registry("multicard.cli", "COMMAND")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 1, or 2 of an option's value, and a line per fault where the input is refused."""
    os.environ["MPLBACKEND"] = "Agg"  # figures go to files
    given = sys.argv[1:] if arguments is None else arguments
    own, rest = given, []
    if "--" in given and any(command.rest and given[0] == command.name for command in COMMANDS.values()):
        at = given.index("--")
        own, rest = given[:at], given[at + 1 :]
    parser = Parser(prog="multicard", description="Plan and check experiments, analyze traces.")
    parser.add_argument("--version", action="version", version=f"multicard {__version__}")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS.values():
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        if command.rest:
            subparser.usage = f"{subparser.format_usage().removeprefix('usage: ').rstrip()} {command.rest}"
        subparser.set_defaults(run=command.run, rest=rest, after=command.rest)
    chosen, unknown = parser.parse_known_args(own)
    if unknown:
        last = f"; {chosen.after} comes last" if chosen.after else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{last}")
    with reported():
        chosen.run(chosen)
