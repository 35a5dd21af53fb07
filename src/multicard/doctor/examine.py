"""All checks, in the order in which one needs the other, as a table or as JSON."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multicard.core.terminal import plain
from multicard.doctor import disk, experiment_runs, gpu, profiler, slurm, slurm_runs, software
from multicard.doctor.checks import Check, torch_facts
from multicard.experiment.load import read_experiment, read_profile
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run, distinct, expand

PROFILE = Path("profiles/slurm")  # looked at where it is, unless another is named
COLOURS = {"ok": "green", "note": "yellow", "wrong": "red"}


def examine(config: Path | None, profile: Path | None) -> list[Check]:
    """Check this machine; with a configuration, for its runs.

    Raises
    ------
    UserError
        If the configuration or a profile that was named cannot be read.
    """
    experiment = read_experiment(config) if config else None
    runs: dict[str, Run] = distinct(expand(experiment)) if experiment else {}
    machine = Machine.here()
    values = read_profile(profile or PROFILE) if profile or (PROFILE / "config.yaml").exists() else None
    fits = partial(slurm_runs.checks, experiment=experiment, runs=runs) if experiment else None
    facts = torch_facts()
    found = [
        *software.checks(facts),
        *gpu.checks(facts),
        *profiler.checks(facts),
        *slurm.checks(values, demanded=profile is not None, fits=fits),
        *disk.checks(Path(experiment.results if experiment else "results"), *_planned(runs, machine)),
    ]
    if experiment:
        found += experiment_runs.checks(experiment, runs, machine, slurm.here())
    return found


def _planned(runs: dict[str, Run], machine: Machine) -> tuple[int, list[Run]]:
    """How many of the runs can run on some machine, and which on this one."""
    somewhere = sum(run.unsupported_reason(machine.hypothetical()) is None for run in runs.values())
    return somewhere, [run for run in runs.values() if run.unsupported_reason(machine) is None]


def print_checks(found: list[Check], as_json: bool, console: Console) -> bool:
    """Print what was found; return whether nothing is wrong."""
    wrong = sum(check.verdict == "wrong" for check in found)
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in found], "wrong": wrong}, indent=2))
        return not wrong
    table = Table("Check", "Found", "Verdict", "What to do")
    for check in found:
        verdict = f"[{COLOURS[check.verdict]}]{check.verdict}[/]"
        table.add_row(plain(check.check), plain(check.found), verdict, plain(check.do))
    console.print(table)
    console.print(f"{wrong} wrong, {sum(check.verdict == 'note' for check in found)} to note", highlight=False)
    return not wrong
