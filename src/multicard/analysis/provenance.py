"""What to know of a scenario's runs beside its numbers: which are not among them, made up, or unlike each other."""

from typing import Literal

from multicard.analysis.evidence import SYNTHETIC
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.layout import NOT_RUN
from multicard.core.text import printable

LONGEST = 90  # characters that one machine is named by


def notes(gathered: ScenarioTables) -> list[str]:
    """Lines about runs that have no numbers, that are made up, or that differ in their machine or versions.

    Each is one line of plain text, in part from files. There is none where all runs completed, on one machine.
    """
    return [*_not_shown(gathered), *_provenance(gathered)]


def synthetic(gathered: ScenarioTables) -> Literal["all", "some"] | None:
    """How many of a scenario's completed runs are made up, by the name of their machine; None where none is."""
    made_up = gathered.table("runs_info")["machine"].dropna().str.lower().str.contains(SYNTHETIC, regex=False)
    if not made_up.any():
        return None
    return "all" if made_up.all() else "some"


def _not_shown(gathered: ScenarioTables) -> list[str]:
    """A line about the runs without numbers: those that did not complete, and those that cannot run here."""
    outcomes = gathered.measures["outcome"]
    counts = outcomes[outcomes != "completed"].value_counts()
    told = [f"{count} {str(outcome).replace('_', ' ')}" for outcome, count in counts.items()]
    if gathered.not_run:
        told.append(f"{gathered.not_run} {NOT_RUN} here")
    return [f"Not shown: {', '.join(told)}"] if told else []


def _provenance(gathered: ScenarioTables) -> list[str]:
    """Lines about completed runs that are made up, or differ in their machine or versions."""
    info = gathered.table("runs_info")
    machines = info["machine"].dropna().unique()
    lines = []
    made_up = synthetic(gathered)
    if made_up:
        lines.append(f"Synthetic: {'' if made_up == 'all' else 'some are '}made-up runs, on no real machine")
    if len(machines) > 1:
        lines.append(f"{len(machines)} machines: {'; '.join(printable(machine, LONGEST) for machine in machines)}")
    each = [set(versions.split(", ")) for versions in info["versions"].dropna().unique()]
    if len(each) > 1:
        differ = sorted(set.union(*each) - set.intersection(*each))
        lines.append(f"{len(each)} sets of versions: {', '.join(printable(version, LONGEST) for version in differ)}")
    return lines
