"""Notes on a scenario's runs: which have no numbers, are synthetic, unlike in machine or versions, or doubtful."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

from multicard.analysis.evidence import Provenance, names_synthetic
from multicard.analysis.runs.notices import INCONSISTENT, NOTICES, PROFILED, TRACE, notices_by_subject
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.layout import NOT_RUN
from multicard.core.text import counted, printable

LONGEST = 90  # characters that one machine is named by


def notes(tables: ScenarioTables, profiled: bool = False) -> list[str]:
    """Lines about runs that have no numbers, are synthetic or adopted, unlike in where they ran, or in doubt.

    Each is one line of plain text, in part from files. There is none where all runs completed, on one machine.
    `profiled`: whether numbers of the profiled window are shown, so that doubts about that window are told too.
    """
    unsaid = (INCONSISTENT, TRACE, *(() if profiled else PROFILED))
    runs = [notices_by_subject(row) for row in tables.completed]
    doubts = (line for kind in NOTICES if kind not in unsaid for line in _counted(runs, kind))
    return [*_not_shown(tables), *_provenance(tables), *doubts]


def synthetic(tables: ScenarioTables) -> Literal["all", "some"] | None:
    """How many of a scenario's completed runs have synthetic timings; None for none."""
    made_up = [names_synthetic([machine]) for machine in tables.table("runs_info")["machine"].dropna()]
    return None if not any(made_up) else "all" if all(made_up) else "some"


def _not_shown(tables: ScenarioTables) -> list[str]:
    """A line about the runs without numbers: those that did not complete, and those that cannot run here."""
    outcomes = tables.measures["outcome"]
    counts = outcomes[outcomes != "completed"].value_counts()
    counted = [f"{count} {str(outcome).replace('_', ' ')}" for outcome, count in counts.items()]
    if tables.reasons_not_run:
        counted.append(f"{len(tables.reasons_not_run)} {NOT_RUN} here")
    return [f"Without numbers: {', '.join(counted)}"] if counted else []


def _counted(runs: Sequence[Mapping[str, str]], kind: str) -> list[str]:
    """A line with the number of runs that have a notice of a kind, and the first of these; or none."""
    found = [run[kind] for run in runs if kind in run]
    if not found:
        return []
    which = "" if len(set(found)) == 1 else "the first: "
    return [f"{kind[0].upper()}{kind[1:]}: {len(found)} of {counted(len(runs), 'run')} ({which}{found[0]})"]


def _provenance(tables: ScenarioTables) -> list[str]:
    """Lines about completed runs that are synthetic, or differ in machine, versions or environment variables."""
    info = tables.table("runs_info")
    synthetic_runs = synthetic(tables)
    lines = [f"Synthetic: {synthetic_runs} runs, on no real machine"] if synthetic_runs else []
    machines = sorted({Provenance(machine).kind or "" for machine in info["machine"].dropna()})
    if len(machines) > 1:
        lines.append(f"{len(machines)} machines: {'; '.join(printable(machine, LONGEST) for machine in machines)}")
    each = [set(versions.split(", ")) for versions in info["versions"].dropna().unique()]
    if len(each) > 1:
        differ = sorted(set.union(*each) - set.intersection(*each))
        lines.append(f"{len(each)} sets of versions: {', '.join(printable(version, LONGEST) for version in differ)}")
    variables = [json.loads(text) for text in info["variables"].dropna().unique()]
    if len(variables) > 1:
        names = sorted({name for each in variables for name in each})
        values = {name: list(dict.fromkeys(each.get(name, "not set") for each in variables)) for name in names}
        unlike = [printable(f"{name} {' or '.join(found)}", LONGEST) for name, found in values.items() if found[1:]]
        lines.append(f"{len(variables)} sets of environment variables: {', '.join(unlike)}")
    return lines
