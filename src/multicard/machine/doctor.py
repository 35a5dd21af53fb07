"""All checks, in the order in which one needs the other, as text or as JSON."""

import json
import shlex
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from multicard.archive.matrix import Matrix
from multicard.core.terminal import plain
from multicard.core.text import counted
from multicard.experiment.load import read_experiment, read_profile
from multicard.experiment.machine import Machine
from multicard.machine import Check, disk, gpus, profiler, slurm
from multicard.machine.probe import facts_here

PROFILE = Path("profiles/slurm")  # looked at where it is, unless another is named
SHOWN = 3  # reasons why runs cannot run
COLOURS = {"error": "red", "warning": "yellow", "ok": "green"}


def examine(config: Path | None, profile: Path | None) -> list[Check]:
    """Check this machine; with a configuration, for its runs.

    Raises `UserError` if the configuration or a profile that was named cannot be read.
    """
    values = read_profile(profile or PROFILE) if profile or (PROFILE / "config.yaml").exists() else None
    matrix = Matrix.plan(read_experiment(config, profile)) if config else None
    facts, machine = facts_here(), Machine.here()
    runs = list(matrix.runs.values()) if matrix else []
    somewhere = sum(run.unsupported_reason(machine.hypothetical()) is None for run in runs)
    loading = [run for run in runs if run.unsupported_reason(machine) is None]
    found = [
        *gpus.checks(facts, machine),
        *profiler.checks(facts),
        *slurm.checks(values, demanded=profile is not None),
        *disk.checks(Path(matrix.experiment.results if matrix else "results"), somewhere, loading),
    ]
    return [*found, _runs(matrix, config)] if matrix else found


def _runs(matrix: Matrix, config: Path) -> Check:
    """Count the runs that can run, and why the others cannot."""
    experiment, lost = matrix.experiment, matrix.not_runnable()
    where = "on the cluster" if experiment.cluster else "here"
    found = f"{len(matrix.runs) - len(lost)} of {len(matrix.runs)} can run {where}"
    reasons = Counter(lost.values()).most_common()
    found += "".join(f"; {count}: {reason}" for reason, count in reasons[:SHOWN])
    if reasons[SHOWN:]:
        found += f"; {sum(count for _, count in reasons[SHOWN:])} for other reasons"
    named = shlex.quote(str(config))
    verdict, do = ("warning", f"multicard run {named} --dry-run lists each with its reason") if lost else ("ok", "")
    if any(matrix.runs[run].parameters.device == "cuda" for run in lost) and matrix.machine.gpus == 0:
        verdict, do = "error", "run it where GPUs are"
        if slurm.here() and not experiment.cluster:
            verdict, do = "warning", f"multicard doctor {named} --profile slurm checks them for the cluster"
    return Check("runs", found, verdict, do)


def print_checks(found: list[Check], as_json: bool, console: Console) -> bool:
    """Print what was found, the worst first; return whether there is no error."""
    counts = Counter(check.verdict for check in found)
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in found], "errors": counts["error"]}, indent=2))
        return not counts["error"]
    answer = f"Not ready: {counted(counts['error'], 'error')}" if counts["error"] else "Ready"
    console.print(answer + (f", {counted(counts['warning'], 'warning')}" if counts["warning"] else ""), style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    for check in sorted(found, key=lambda check: list(COLOURS).index(check.verdict)):
        lines = Text("\n").join(map(plain, [check.found, *([f"→ {check.do}"] if check.do else [])]))
        table.add_row(Text(check.verdict, COLOURS[check.verdict]), plain(check.check), lines)
    console.print(table)
    return not counts["error"]
