"""Notes on runs: which have no numbers, are synthetic, unlike in machine or versions, or doubtful."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from multicard.analysis.runs.notices import INCONSISTENT, NOTICES, PROFILED, TRACE, notices_by_subject
from multicard.core.layout import NOT_RUN
from multicard.core.text import counted, printable
from multicard.results.configuration import MeasuredRun
from multicard.results.results import Results
from multicard.results.tables import RUNS_INFO

LONGEST_NAME = 90  # characters that one machine, version or variable is named by


def notes(results: Results, profiled: bool = False) -> list[str]:
    """Return lines about runs that have no numbers, are synthetic or adopted, ran in unlike places, or are in doubt.

    Each is one line of plain text, in part from files. There is none where all runs completed, on one machine.
    `profiled`: whether numbers of the profiled window are shown, so that doubts about that window are told too.
    """
    completed = _completed(results)
    notices_of_runs = [notices_by_subject(run.values) for run in completed]
    left_out = (INCONSISTENT, TRACE, *(() if profiled else PROFILED))
    doubts = [_doubt(kind, notices_of_runs) for kind in NOTICES if kind not in left_out]
    return [
        *_runs_without_numbers(results),
        *_synthetic_line(results),
        *_differing_machines(completed),
        *_differing_versions(completed),
        *_differing_variables(results, completed),
        *filter(None, doubts),
    ]


def synthetic(results: Results) -> Literal["all", "some"] | None:
    """Return how many of the completed runs have invented timings; None for none of them."""
    are_synthetic = [run.provenance.is_synthetic for run in _completed(results) if run.provenance.machine]
    if not any(are_synthetic):
        return None
    return "all" if all(are_synthetic) else "some"


def _completed(results: Results) -> list[MeasuredRun]:
    """Return the completed runs that had all parts of their step."""
    return [run for run in results.runs if run.is_completed and not run.is_ablated]


def _runs_without_numbers(results: Results) -> list[str]:
    """Return a line about the runs that did not complete, and those that cannot run here; or none."""
    outcomes = pd.Series([run.outcome for run in results.runs if not run.is_ablated and not run.is_completed])
    counts = [f"{count} {str(outcome).replace('_', ' ')}" for outcome, count in outcomes.value_counts().items()]
    reasons_not_run = results.reasons_not_run()
    if reasons_not_run:
        counts.append(f"{len(reasons_not_run)} {NOT_RUN} here")
    return [f"Without numbers: {', '.join(counts)}"] if counts else []


def _doubt(kind: str, notices_of_runs: Sequence[Mapping[str, str]]) -> str | None:
    """Return a line with the number of runs that have a notice of a kind, and the first of these; None without any."""
    texts = [notices[kind] for notices in notices_of_runs if kind in notices]
    if not texts:
        return None
    first = texts[0] if len(set(texts)) == 1 else f"the first: {texts[0]}"
    return f"{kind[0].upper()}{kind[1:]}: {len(texts)} of {counted(len(notices_of_runs), 'run')} ({first})"


def _synthetic_line(results: Results) -> list[str]:
    which = synthetic(results)
    return [f"Synthetic: {which} runs, on no real machine"] if which else []


def _differing_machines(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a line with the kinds of machines, if there are several."""
    machines = sorted({run.provenance.kind or "" for run in runs if run.provenance.machine})
    if len(machines) < 2:
        return []
    return [f"{len(machines)} machines: {'; '.join(printable(machine, LONGEST_NAME) for machine in machines)}"]


def _differing_versions(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a line with the versions that not all runs had, if there are any."""
    in_words = dict.fromkeys(run.provenance.versions for run in runs if run.provenance.versions)
    sets: list[set[str]] = [set(versions.split(", ")) for versions in in_words]
    if len(sets) < 2:
        return []
    differing = sorted(sets[0].union(*sets) - sets[0].intersection(*sets))
    names = [printable(version, LONGEST_NAME) for version in differing]
    return [f"{len(sets)} sets of versions: {', '.join(names)}"]


def _differing_variables(results: Results, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a line with the environment variables that not all runs had with the same value, if there are any."""
    info = results.table(RUNS_INFO)
    texts = info.loc[info["run"].isin([run.run for run in runs]), "variables"].dropna().unique()
    environments = [json.loads(text) for text in texts]
    if len(environments) < 2:
        return []
    differing = []
    for name in sorted({name for environment in environments for name in environment}):
        values = list(dict.fromkeys(environment.get(name, "not set") for environment in environments))
        if len(values) > 1:
            differing.append(printable(f"{name} {' or '.join(values)}", LONGEST_NAME))
    return [f"{len(environments)} sets of environment variables: {', '.join(differing)}"]
