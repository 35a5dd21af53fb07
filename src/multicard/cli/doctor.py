"""`multicard doctor`."""

import argparse
import sys
from pathlib import Path

from multicard.cli._command import PREPARE, Command, add_device, device_of, numbers_of_devices
from multicard.core.errors import UserError

LOADER_S = 10.0  # time of each number of loader workers, as a multiple of that of other measurements


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment to check for, and what to measure, for how long, and where to keep it."""
    add = parser.add_argument
    add("config", type=Path, nargs="?", metavar="CONFIG", help="also check whether the runs of this file can run here")
    add(
        "--profile", type=Path, metavar="FOLDER",
        help="Snakemake profile to check (default: profiles/slurm if it exists)",
    )  # fmt: skip
    add("--json", action="store_true", help="print the checks as JSON")
    add(
        "--measure", action="store_true",
        help="measure the limits of this machine instead: compute, memory, copies, all-reduces; with CONFIG also the "
        "loaders of its vision runs",
    )  # fmt: skip
    group = parser.add_argument_group("with --measure")
    add_device(group)
    group.add_argument("--devices", metavar="N,...", help="numbers of devices for all-reduces (default: powers of two)")
    group.add_argument(
        "--seconds", type=float, default=1.0, metavar="S",
        help="time of each measurement, and of each number of loader workers ten times as much (default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Print what this machine has and what is missing, or its limits; exit with 1 when something is wrong."""
    from multicard.cli._console import console

    if arguments.measure:
        has_all = measure(arguments)
    else:
        from multicard.machine.doctor import examine, print_checks

        has_all = print_checks(examine(arguments.config, arguments.profile), arguments.json, console())
    if not has_all:
        sys.exit(1)


def measure(arguments: argparse.Namespace) -> bool:
    """Measure this machine, keep the record, and print it; return whether everything could be measured."""
    from multicard.core.files import unwritable
    from multicard.core.layout import machine_file
    from multicard.core.pipeline import pipeline_folder
    from multicard.experiment.load import read_experiment
    from multicard.experiment.machine import Machine
    from multicard.experiment.runs import distinct, expand
    from multicard.machine.jobs import loaders, prepare_data

    counts, seconds = None, arguments.seconds
    if arguments.devices:
        counts = numbers_of_devices("--devices", arguments.devices)
    if not 0 < seconds < float("inf"):
        raise UserError(f"--seconds: found {seconds:g}, expected a time above 0")
    experiment = read_experiment(arguments.config) if arguments.config else None
    results = Path(experiment.results if experiment else "results")
    if reason := unwritable(results):
        raise UserError(f"results: cannot write: {reason}")
    device, jobs = device_of(arguments.device), []
    if experiment:
        here = Machine.here()
        runs = [one for one in distinct(expand(experiment)).values() if one.unsupported_reason(here) is None]
        jobs = loaders(runs, device)
        if not jobs:
            print(f"{arguments.config}: no run here on {device} has a loader that is measured alone", file=sys.stderr)
        prepare_data(runs, device, pipeline_folder() / "resources")
    from multicard.analysis.machine.limits import lines
    from multicard.cli._console import console, text_table
    from multicard.core.terminal import plain
    from multicard.machine.keep import keep  # which import PyTorch and matplotlib
    from multicard.machine.measure import measure_machine

    record = measure_machine(
        device, counts, jobs, seconds, LOADER_S * seconds, lambda line: print(line, file=sys.stderr, flush=True)
    )
    path = machine_file(results, device)
    limits, terminal = keep(record, path), console()
    rows = [(line.what, line.of, line.rate, line.spread) for line in lines(limits)]
    terminal.print(text_table("Limits of this machine", ("Limit", "Of", "Value", "95% CI"), rows))
    for line in (*limits.notes, f"record: {path}"):
        terminal.print(plain(line), soft_wrap=True)
    return not any(part.problem for part in limits.parts)


COMMAND = Command(
    "doctor",
    100,
    "check this machine and name a remedy for each problem, or measure its limits",
    add_arguments,
    run,
    PREPARE,
    "multicard doctor",
)
