"""Notes on runs: without numbers, with synthetic timings, on different machines or versions, or with doubts."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from multicard.core.text import counted, printable
from multicard.results.configuration import MeasuredRun
from multicard.results.notices import INCONSISTENT, NOTICES, PROFILED, REMEDIES, TRACE, notices_by_subject
from multicard.results.results import Results
from multicard.results.tables import RUNS_INFO

# Most characters that are shown of the name of a machine or version, or of a variable with its values.
LONGEST_NAME = 90


def notes(results: Results, profiled: bool = False, remedies: bool = False) -> list[str]:
    """Return lines about runs that have no numbers, are synthetic, ran in different environments, or have notices.

    Lines are plain text, which may be from files. There are none if all runs completed in the same environment and none
    has a notice. Notices that a record is inconsistent or a trace incomplete are left out. `profiled`: True to include
    notices about the profiled window, because its numbers are shown. `remedies`: True to end notices with what helps.
    """
    completed = _completed(results)
    notices_of_runs = [notices_by_subject(run.values) for run in completed]
    left_out = {INCONSISTENT, TRACE}
    if not profiled:
        left_out.update(PROFILED)
    subjects = [subject for subject in NOTICES if subject not in left_out]
    doubts = [_doubt(subject, notices_of_runs, remedies) for subject in subjects]
    return [
        *_runs_without_numbers(results),
        *_synthetic_line(results),
        *_differing_machines(completed),
        *_differing_versions(completed),
        *_differing_variables(results, completed),
        *filter(None, doubts),
    ]


def synthetic(results: Results) -> Literal["all", "some"] | None:
    """Return whether `all` or `some` of the completed runs have invented timings; None if none has.

    Runs whose machine is not recorded are left out.
    """
    provenances = [run.provenance for run in _completed(results)]
    are_synthetic = [provenance.is_synthetic for provenance in provenances if provenance.machine]
    if not any(are_synthetic):
        return None
    return "all" if all(are_synthetic) else "some"


def _completed(results: Results) -> list[MeasuredRun]:
    """Return the completed runs that had all parts of their step."""
    return [run for run in results.runs if run.is_completed and not run.is_ablated]


def _runs_without_numbers(results: Results) -> list[str]:
    """Return a line with the numbers of runs that did not complete, or cannot run here; none if there are none."""
    failed_runs = [run for run in results.runs if not run.is_ablated and not run.is_completed]
    outcomes = pd.Series([run.outcome for run in failed_runs])
    counts = []
    for outcome, count in outcomes.value_counts().items():
        words = str(outcome).replace("_", " ")
        counts.append(f"{count} {words}")
    reasons_not_run = results.reasons_not_run()
    if reasons_not_run:
        counts.append(f"{len(reasons_not_run)} cannot run here")
    return [f"Runs without numbers: {', '.join(counts)}"] if counts else []


def _doubt(subject: str, notices_of_runs: Sequence[Mapping[str, str]], has_remedy: bool) -> str | None:
    """Return a line with the number of runs that have a notice on a subject, and the first notice; None without any.

    `has_remedy`: True to end it with what helps, if that is known.
    """
    texts = [notices[subject] for notices in notices_of_runs if subject in notices]
    if not texts:
        return None
    are_equal = len(set(texts)) == 1
    first = texts[0] if are_equal else f"e.g. {texts[0]}"
    heading = subject[0].upper() + subject[1:]
    run_count = counted(len(notices_of_runs), "run")
    remedy = f"; {REMEDIES[subject]}" if has_remedy and subject in REMEDIES else ""
    return f"{heading}: {len(texts)} of {run_count} ({first}){remedy}"


def _synthetic_line(results: Results) -> list[str]:
    which = synthetic(results)
    return [f"Synthetic timings, from no real machine: {which} runs"] if which else []


def _differing_machines(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a line with the kinds of machines, if there are several."""
    provenances = [run.provenance for run in runs]
    machines = sorted({provenance.kind or "" for provenance in provenances if provenance.machine})
    if len(machines) < 2:
        return []
    names = [printable(machine, LONGEST_NAME) for machine in machines]
    return [f"{len(machines)} machines: {'; '.join(names)}"]


def _differing_versions(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a line with the versions that some runs had and others had not, if there are any."""
    versions_of_runs = [run.provenance.versions for run in runs]
    distinct = dict.fromkeys(versions for versions in versions_of_runs if versions)
    sets: list[set[str]] = [set(versions.split(", ")) for versions in distinct]
    if len(sets) < 2:
        return []
    of_any_run = sets[0].union(*sets)
    of_all_runs = sets[0].intersection(*sets)
    differing = sorted(of_any_run - of_all_runs)
    names = [printable(version, LONGEST_NAME) for version in differing]
    return [f"{len(sets)} sets of versions: {', '.join(names)}"]


def _differing_variables(results: Results, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a line with the environment variables that differ between runs, and their values, if there are any."""
    info = results.table(RUNS_INFO)
    run_names = [run.run for run in runs]
    is_of_runs = info["run"].isin(run_names)
    variables = info.loc[is_of_runs, "variables"]
    environments = [json.loads(text) for text in variables.dropna().unique()]
    if len(environments) < 2:
        return []
    names: set[str] = set().union(*environments)
    differing = []
    for name in sorted(names):
        # A dictionary, unlike a set, keeps the distinct values in the order of the runs.
        values = dict.fromkeys(environment.get(name, "not set") for environment in environments)
        if len(values) > 1:
            alternatives = " or ".join(values)
            differing.append(printable(f"{name} {alternatives}", LONGEST_NAME))
    return [f"{len(environments)} sets of environment variables: {', '.join(differing)}"]
