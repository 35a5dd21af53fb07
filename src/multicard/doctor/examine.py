"""All checks, in the order in which one needs the other, as a table or as JSON."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multicard.archive.matrix import Matrix
from multicard.core.terminal import plain
from multicard.doctor import all_reduce, compiler, disk, gpu, gpu_health, profiler, runs, slurm, software
from multicard.doctor.checks import Check, torch_facts
from multicard.experiment.load import read_experiment, read_profile
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run

PROFILE = Path("profiles/slurm")  # looked at where it is, unless another is named
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def examine(config: Path | None, profile: Path | None) -> list[Check]:
    """Check this machine; with a configuration, for its runs.

    Raises
    ------
    UserError
        If the configuration or a profile that was named cannot be read.
    """
    values = read_profile(profile or PROFILE) if profile or (PROFILE / "config.yaml").exists() else None
    matrix = Matrix.plan(read_experiment(config, profile)) if config else None
    on_cluster = matrix
    if config and profile is None and values and values.get("executor") == "slurm":
        on_cluster = Matrix.plan(read_experiment(config, PROFILE))
    facts = torch_facts()
    found = [
        *software.checks(facts),
        *gpu.checks(facts),
        *gpu_health.checks(facts),
        *all_reduce.checks(facts),
        *profiler.checks(facts),
        *profiler.other_checks(),
        *slurm.checks(values, demanded=profile is not None, fits=partial(runs.on_nodes, matrix=on_cluster)),
        *disk.checks(Path(matrix.experiment.results if matrix else "results"), *_planned(matrix)),
    ]
    if matrix:
        found += compiler.checks(facts, matrix.runs.values())
        found += runs.checks(matrix, slurm.here())
    return found


def _planned(matrix: Matrix | None) -> tuple[int, list[Run]]:
    """How many of the runs can run on some machine, and which on this one."""
    if matrix is None:
        return 0, []
    here, every = Machine.here(), matrix.runs.values()
    somewhere = sum(run.unsupported_reason(here.hypothetical()) is None for run in every)
    return somewhere, [run for run in every if run.unsupported_reason(here) is None]


def print_checks(found: list[Check], as_json: bool, console: Console) -> bool:
    """Print what was found; return whether there is no error."""
    errors, warnings = (sum(check.verdict == verdict for check in found) for verdict in ("error", "warning"))
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in found], "errors": errors}, indent=2))
        return not errors
    table = Table("Check", "Found", "Verdict", "What to do")
    for check in found:
        verdict = f"[{COLOURS[check.verdict]}]{check.verdict}[/]"
        table.add_row(plain(check.check), plain(check.found), verdict, plain(check.do))
    console.print(table)
    console.print(f"{errors} errors, {warnings} warnings", highlight=False)
    return not errors
