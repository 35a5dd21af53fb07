"""The console command `multicard`. Each of its commands is a module of this package."""

import argparse
import os
import sys
from collections.abc import Mapping

from multicard import __version__
from multicard.cli import analyze, archive, compare, doctor, export, recommend, report, run, scale, status, tune
from multicard.cli._command import Command, Parser
from multicard.core.entries import by_name
from multicard.core.errors import reported

# The help lists the commands in this order. Importing the modules is fast, because they import what they need inside
# functions.
COMMANDS: Mapping[str, Command] = by_name(
    scale.COMMAND,
    run.COMMAND,
    tune.COMMAND,
    status.COMMAND,
    recommend.COMMAND,
    report.COMMAND,
    compare.COMMAND,
    analyze.COMMAND,
    archive.COMMAND,
    export.COMMAND,
    doctor.COMMAND,
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. If the input is refused, print a line per fault and exit with code 1."""
    os.environ["MPLBACKEND"] = "Agg"  # figures go to files
    all_arguments = sys.argv[1:] if arguments is None else arguments
    own_arguments, trailing_arguments = _divided(all_arguments)
    parser = Parser(
        prog="multicard", formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="multicard [-h] [--version] COMMAND ...",
        description="How does multi-GPU training scale, how many GPUs should it use, and where does its time go?",
        epilog=_groups(),
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"multicard {__version__}")
    subparsers = parser.add_subparsers(required=True, prog="multicard", metavar="COMMAND", help="one of those below")
    for command in COMMANDS.values():
        example = f"example: {command.example}"
        # Without the argument `help`, argparse does not list the command again: `_groups` lists all commands.
        subparser = subparsers.add_parser(command.name, description=f"{command.help}; {example}")
        command.add_arguments(subparser)
        if command.trailing:
            subparser.usage = f"{subparser.format_usage().removeprefix('usage: ').rstrip()} {command.trailing}"
        subparser.set_defaults(run=command.run, trailing=trailing_arguments, trailing_usage=command.trailing)
    chosen, unknown = parser.parse_known_args(own_arguments)
    if unknown:
        last = f"; {chosen.trailing_usage} comes last" if chosen.trailing_usage else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{last}")
    with reported():
        chosen.run(chosen)


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and those after `--`; all and none for commands without `Command.trailing`."""
    takes_trailing = any(command.trailing and command.name in arguments[:1] for command in COMMANDS.values())
    if not takes_trailing or "--" not in arguments:
        return arguments, []
    separator = arguments.index("--")
    return arguments[:separator], arguments[separator + 1 :]


def _groups() -> str:
    """Return the commands by group, each with an example."""
    lines = []
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        lines.append(f"{group}:")
        for command in COMMANDS.values():
            if command.group == group:
                lines += [f"  {command.name:<10} {command.help}", f"{'':13}{command.example}"]
        lines.append("")
    lines += ["exit codes: 0 success; 1 an error, wrong usage or a regression; 2 the measurements give no answer", ""]
    return "\n".join([*lines, "Run `multicard COMMAND --help` for details."])
