"""`multicard doctor`."""

import argparse
import sys
from pathlib import Path

from multicard.cli._command import PREPARE, Command
from multicard.cli._measure_machine import add_arguments as add_arguments_of_measuring
from multicard.cli._measure_machine import measure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment to check for."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="also check whether the runs of this configuration can run here"
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FOLDER",
        help="Snakemake profile to check (default: profiles/slurm if it exists)",
    )
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument(
        "--measure", action="store_true",
        help="measure the limits of this machine instead: compute, memory, copies, all-reduces; with --config also the "
        "loaders of its vision runs, and steps without one",
    )  # fmt: skip
    add_arguments_of_measuring(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what this machine has and what is missing; exit with 1 when something is wrong."""
    if arguments.measure:
        measure(arguments)
        return
    from multicard.cli._console import console
    from multicard.machine.doctor import examine, print_checks

    if not print_checks(examine(arguments.config, arguments.profile), arguments.json, console()):
        sys.exit(1)


COMMAND = Command(
    "doctor",
    100,
    "check this machine and name a remedy for each problem, or measure its limits",
    add_arguments,
    run,
    PREPARE,
    "multicard doctor",
)
