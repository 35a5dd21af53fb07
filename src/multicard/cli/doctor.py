"""Check this machine and name a remedy for each problem, or measure its limits."""

import argparse
import sys
from pathlib import Path

from multicard.cli._command import PREPARE, Command, add_device, device_of, numbers_of_devices, profile
from multicard.cli._console import console, say, text_table
from multicard.core.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the experiment to check for; what to measure, and for how long."""
    add = parser.add_argument
    add("config", type=Path, nargs="?", metavar="CONFIG", help="also check whether the runs of this file can run here")
    add(
        "--profile", type=profile, metavar="FOLDER",
        help="Snakemake profile to check (default: profiles/slurm if it exists)",
    )  # fmt: skip
    add("--json", action="store_true", help="print the checks as JSON")
    add(
        "--measure", action="store_true",
        help="instead measure the limits of this machine: compute, all-reduces",
    )  # fmt: skip
    group = parser.add_argument_group("with --measure")
    add_device(group)
    group.add_argument("--devices", metavar="N,...", help="numbers of devices for all-reduces (default: powers of two)")
    group.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="time of each measurement (default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Print what this machine has and what is missing, or measure its limits; exit with 1 if something is wrong."""
    if arguments.measure:
        has_all = measure(arguments)
    else:
        from multicard.machine.doctor import examine, print_checks

        has_all = print_checks(examine(arguments.config, arguments.profile), arguments.json, console())
    if not has_all:
        sys.exit(1)


def measure(arguments: argparse.Namespace) -> bool:
    """Measure this machine, write the record into the results, and print it; return True if all could be measured."""
    from multicard.config.load import read_experiment
    from multicard.core.files import unwritable, write_json
    from multicard.core.layout import machine_file

    counts = numbers_of_devices(arguments.devices) if arguments.devices else None
    if not 0 < arguments.seconds < float("inf"):
        raise UserError(f"--seconds: found {arguments.seconds:g}, expected a time above 0")
    results = Path(read_experiment(arguments.config).results if arguments.config else "results")
    if reason := unwritable(results):
        raise UserError(f"results: cannot write: {reason}")
    from multicard.machine.measure import measure_machine
    from multicard.results.limits import lines, read_machine

    device = device_of(arguments.device)
    record = measure_machine(device, counts, arguments.seconds, lambda line: print(line, file=sys.stderr, flush=True))
    path = machine_file(results, device)
    write_json(path, record)
    limits = read_machine(path)
    rows = [(line.what, line.conditions, line.rate, line.spread) for line in lines(limits)]
    table = text_table("Limits of this machine", ("Limit", "Of", "Value", "95% CI"), rows)
    say(table, *limits.notes, f"record: {path}")
    return not any(part.problem for part in limits.parts)


COMMAND = Command(PREPARE, "multicard doctor", add_arguments, run)
