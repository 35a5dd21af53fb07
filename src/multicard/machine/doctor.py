"""Make all checks of a machine, and print them as text or as JSON."""

import json
import shlex
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from multicard.config.load import read_experiment, read_profile
from multicard.config.plan import Plan
from multicard.core.terminal import plain
from multicard.core.text import counted
from multicard.machine import Check, Verdict, disk, gpus, profiler, slurm
from multicard.machine.probe import facts_here
from multicard.programs.machine import Machine

# The profile that is checked if the user names none and this one exists.
PROFILE = Path("profiles/slurm")
# Number of reasons that are shown why runs cannot run; the most frequent ones are shown.
SHOWN_REASONS = 3
# The colour of each verdict. Checks are shown in the order of these verdicts.
COLOURS: dict[Verdict, str] = {"error": "red", "warning": "yellow", "ok": "green"}


def examine(config: Path | None, profile: Path | None) -> list[Check]:
    """Check this machine; if `config` is given, also whether the runs of this configuration can run.

    `config`, `profile`: paths, None if the user named none.

    Raises `UserError` if the configuration or the profile cannot be read.
    """
    has_profile = profile is not None or (PROFILE / "config.yaml").exists()
    profile_values = read_profile(profile or PROFILE) if has_profile else None
    plan = None if config is None else Plan.make(read_experiment(config, profile))
    facts = facts_here()
    machine = Machine.here()
    machine_checks = [
        *gpus.checks(facts, machine),
        *profiler.checks(facts),
        *slurm.checks(profile_values, demanded=profile is not None),
    ]
    if config is None or plan is None:
        return [*machine_checks, *disk.checks(Path("results"))]
    runs = list(plan.runs.values())
    # All runs that some machine can run leave their files in this results folder. Runs that this machine can run load
    # their data here.
    planned = sum(run.unsupported_reason(machine.hypothetical()) is None for run in runs)
    runs_here = [run for run in runs if run.unsupported_reason(machine) is None]
    disk_checks = disk.checks(Path(plan.experiment.results), planned, runs_here)
    return [*machine_checks, *disk_checks, _runs(plan, config)]


def _runs(plan: Plan, config: Path) -> Check:
    """Check whether all runs can run; name the reasons of those that cannot, and what to do about it."""
    cluster = plan.experiment.cluster
    # The reason of each run that cannot run, by its id.
    reasons = plan.not_runnable()
    runnable = _runnable(len(plan.runs), reasons.values(), "on the cluster" if cluster else "here")
    if not reasons:
        return Check("runs", runnable)
    named = shlex.quote(str(config))
    needs_gpus = any(plan.runs[run].parameters.device == "cuda" for run in reasons)
    if not needs_gpus or plan.machine.gpus:
        return Check("runs", runnable, "warning", f"multicard run {named} --dry-run lists each with its reason")
    if slurm.is_available() and not cluster:
        do = f"multicard doctor {named} --profile slurm checks them for the cluster"
        return Check("runs", runnable, "warning", do)
    return Check("runs", runnable, "error", "run it where GPUs are")


def _runnable(count: int, reasons: Collection[str], where: str) -> str:
    """Return, in words, how many of `count` runs can run, and the most frequent reasons of those that cannot.

    `reasons`: one for each run that cannot. `where`: words for the place.
    """
    parts = [f"{count - len(reasons)} of {count} can run {where}"]
    most_frequent = Counter(reasons).most_common()
    parts += [f"{times}: {reason}" for reason, times in most_frequent[:SHOWN_REASONS]]
    remaining_count = sum(times for _, times in most_frequent[SHOWN_REASONS:])
    if remaining_count:
        parts.append(f"{remaining_count} for other reasons")
    return "; ".join(parts)


def print_checks(checks: list[Check], as_json: bool, console: Console) -> bool:
    """Print checks, as text with the worst first; return True if none is an error."""
    counts = Counter(check.verdict for check in checks)
    is_ready = not counts["error"]
    if as_json:
        print(json.dumps({"checks": [asdict(check) for check in checks], "errors": counts["error"]}, indent=2))
        return is_ready
    console.print(_answer(counts), style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    worst_first = list(COLOURS)
    for check in sorted(checks, key=lambda check: worst_first.index(check.verdict)):
        lines = [check.found]
        if check.do:
            lines.append(f"→ {check.do}")
        table.add_row(
            Text(check.verdict, COLOURS[check.verdict]), plain(check.check), Text("\n").join(map(plain, lines))
        )
    console.print(table)
    return is_ready


def _answer(counts: Counter[Verdict]) -> str:
    """Return the first line of the text: whether the machine is ready, and the numbers of errors and warnings."""
    answer = f"Not ready: {counted(counts['error'], 'error')}" if counts["error"] else "Ready"
    if counts["warning"]:
        answer += f", {counted(counts['warning'], 'warning')}"
    return answer
