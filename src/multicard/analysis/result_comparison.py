"""Two sets of results compared: what became faster or slower per configuration, and what else differs.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from multicard.analysis.conditions import disturbance, how_many
from multicard.analysis.measures import measure_run
from multicard.analysis.notices import notices
from multicard.analysis.run_files import read_record
from multicard.analysis.scaling import add_scaling
from multicard.analysis.statistics import Interval, corrected, ratio_of, verdict
from multicard.core.units import BYTES, with_unit
from multicard.experiment.parameters import as_columns

# Compared measures, and the words for more and for less of each. A measure that neither side has is skipped.
WORDS: dict[str, tuple[str, str]] = {
    "iteration_time_s": ("slower", "faster"),
    "throughput_samples_per_s": ("faster", "slower"),
    "tokens_per_s": ("faster", "slower"),
    "steps_per_s": ("faster", "slower"),
    "speedup": ("scales better", "scales worse"),
    "peak_memory_bytes": ("more memory", "less memory"),
    "energy_per_sample_j": ("more energy", "less energy"),
    "energy_per_token_j": ("more energy", "less energy"),
    "test_accuracy": ("higher", "lower"),
    "test_loss": ("higher", "lower"),
    "loss_at_end": ("higher", "lower"),
}
# Work over time: where the work is the same in all runs, each is the same comparison as that of the iteration time.
RATES = ("throughput_samples_per_s", "tokens_per_s", "steps_per_s")
SAME_WORK = 1e-6  # relative difference of the work of a step up to which it is the same
NO_DIFFERENCE, CANNOT_TELL = "no difference", "cannot tell"
NOT_IN_A, NOT_IN_B = "measured in b only", "measured in a only"
MACHINE = "machine"  # the entry of the environment that is its name
REPEAT = re.compile(r"_r\d+(?=$|_[0-9a-f]{12}$)")


@dataclass(frozen=True)
class Change:
    """One measure of one configuration: its medians over repeats, and the ratio of its geometric means, b over a.

    `verdict` is in words; `repeats` counts the completed runs of each side that have the measure. The median of a side
    without it is None.
    """

    configuration: str
    measure: str
    a: float | None
    b: float | None
    ratio: Interval
    repeats: tuple[int, int]
    verdict: str


@dataclass(frozen=True)
class ResultComparison:
    """How two sets of results differ.

    Attributes
    ----------
    changes
        Of configurations that completed on both sides, in the order of a.
    outcomes
        Runs whose outcome differs: their id, and the outcome in a and in b.
    only_a, only_b
        Ids of runs that are not on the other side.
    environment
        Machines, versions, environment variables and data that differ: what it is, and its values in a and in b; and,
        if there are any, how many runs were disturbed.
    notices
        Completed runs whose numbers are in doubt: `a` or `b`, their id, and why.
    """

    changes: list[Change]
    outcomes: list[tuple[str, str, str]]
    only_a: list[str]
    only_b: list[str]
    environment: list[tuple[str, str, str]]
    notices: list[tuple[str, str, str]]


def compare_results(a: Sequence[Path], b: Sequence[Path]) -> ResultComparison:
    """Compare two sets of run directories.

    Repeats of the two sides did not run in turn, so they are not paired. Verdicts are corrected for all rows of
    `changes`, of which iteration time and a throughput that follows from it are one. One repeat gives no interval, and
    so no verdict.

    Raises
    ------
    UserError
        If a file of a run is missing or damaged.
    """
    sides = [_measured(folders) for folders in (a, b)]
    records = [[read_record(folder) for folder in folders] for folders in (a, b)]
    by_run = [{row["run"]: row for row in rows} for rows in sides]
    shared = [run for run in by_run[0] if run in by_run[1]]
    return ResultComparison(
        changes=_changes(*(_values(rows, found) for rows, found in zip(sides, records, strict=True))),
        outcomes=[
            (run, *outcomes)
            for run in shared
            if len(set(outcomes := tuple(side[run]["outcome"] for side in by_run))) > 1
        ],
        only_a=[run for run in by_run[0] if run not in by_run[1]],
        only_b=[run for run in by_run[1] if run not in by_run[0]],
        environment=_environment(*([record for record in found if record["run"] in shared] for found in records)),
        notices=[
            (side, row["run"], "; ".join(why))
            for side, rows in zip("ab", sides, strict=True)
            for row in rows
            if (why := notices(row))
        ],
    )


def _measured(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Measures of each run, with the speed-up of those on several devices."""
    rows = [measure_run(folder) for folder in folders]
    for name in {row["workload"] for row in rows}:
        alike = [row for row in rows if row["workload"] == name]
        for row, speedup in zip(alike, add_scaling(pd.DataFrame(alike))["speedup"], strict=True):
            row["speedup"] = speedup if row["devices"] > 1 else None
    return rows


def _values(rows: list[dict[str, Any]], records: list[dict[str, Any]]) -> dict[str, tuple[str, dict[str, list[float]]]]:
    """Name and values of the measures of the completed runs of each configuration."""
    configurations: dict[str, tuple[str, dict[str, list[float]]]] = {}
    for row, record in zip(rows, records, strict=True):
        parameters = as_columns({name: value for name, value in record["parameters"].items() if name != "repeat"})
        name = REPEAT.sub("", row["run"])
        _, values = configurations.setdefault(repr(sorted(parameters.items())), (name, {}))
        if row["outcome"] == "completed":
            for measure in WORDS:
                if not pd.isna(row.get(measure)):
                    values.setdefault(measure, []).append(float(row[measure]))
    return configurations


def _changes(a: dict[str, Any], b: dict[str, Any]) -> list[Change]:
    """Of configurations that completed on both sides, the measures that either has."""
    found = [
        (name, measure, values.get(measure, []), b[key][1].get(measure, []))
        for key, (name, values) in a.items()
        if key in b and values and b[key][1]
        for measure in WORDS
        if measure in values or measure in b[key][1]
    ]
    ratios = _corrected(found)
    return [
        Change(
            configuration=name,
            measure=measure,
            a=median(before) if before else None,
            b=median(after) if after else None,
            ratio=ratio,
            repeats=(len(before), len(after)),
            verdict=_word(measure, ratio) if before and after else (NOT_IN_B if before else NOT_IN_A),
        )
        for (name, measure, before, after), ratio in zip(found, ratios, strict=True)
    ]


def _corrected(found: Sequence[tuple[str, str, list[float], list[float]]]) -> list[Interval]:
    """Ratios with p-values corrected for their number; those of one test, which always agree, count once."""
    times = {name: before + after for name, measure, before, after in found if measure == "iteration_time_s"}
    tests: dict[tuple[str, str], Interval] = {}
    keys = []
    for name, measure, before, after in found:
        twin = measure in RATES and _same_work(times.get(name, []), before + after)
        keys.append((name, "iteration_time_s" if twin else measure))
        tests.setdefault(keys[-1], ratio_of(after, before))
    adjusted = dict(zip(tests, corrected(list(tests.values())), strict=True))
    return [
        replace(ratio_of(after, before), p_value=adjusted[key].p_value)
        for key, (_, _, before, after) in zip(keys, found, strict=True)
    ]


def _same_work(times: list[float], rates: list[float]) -> bool:
    """Whether time per step × rate, the work of a step, is the same in all runs."""
    if not times or len(times) != len(rates):
        return False
    work = [time * rate for time, rate in zip(times, rates, strict=True)]
    return max(work) - min(work) <= SAME_WORK * max(work)


def _word(measure: str, ratio: Interval) -> str:
    more, less = WORDS[measure]
    return {"more": more, "less": less, "none": NO_DIFFERENCE, "unknown": CANNOT_TELL}[verdict(ratio)]


def _environment(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    variables = sorted({name for record in [*a, *b] for name in record.get("variables") or {}})
    sides = [_facts(records, variables) for records in (a, b)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [(name, *(", ".join(sorted(side.get(name, ()))) or "not recorded" for side in sides)) for name in names]
    differing = [(name, before, after) for name, before, after in rows if before != after]
    disturbed = [[text for record in records if (text := disturbance(record))] for records in (a, b)]
    if any(disturbed):
        counts = [how_many(texts, len(records)) for texts, records in zip(disturbed, (a, b), strict=True)]
        differing.append(("disturbed runs", *counts))
    return differing


def _facts(records: list[dict[str, Any]], variables: Sequence[str]) -> dict[str, set[str]]:
    """Where and on what the runs ran, and with which environment variables: all values of each fact."""
    facts: dict[str, set[str]] = {}

    def add(name: str, value: Any) -> None:
        if value is not None:
            facts.setdefault(name, set()).add(str(value))

    for record in records:
        host, hardware = record.get("host") or {}, record.get("hardware") or {}
        add(MACHINE, host.get("name"))
        add("system", host.get("system"))
        for name in ("processor", "logical_cpus", "usable_cpus", "memory_bytes"):
            add(name, hardware.get(name))
        for gpu in hardware.get("gpus") or []:
            memory = gpu.get("memory_bytes")
            add("GPUs", str(gpu.get("name")) + (f" ({with_unit(memory, BYTES)})" if memory else ""))
        if hardware.get("gpus"):
            add("number of GPUs", len(hardware["gpus"]))
        for name, version in (record.get("versions") or {}).items():
            add(f"version of {name}", version)
        for name in variables if record.get("variables") is not None else ():
            add(f"variable {name}", record["variables"].get(name, "not set"))
        add("profiler", record["profiler"]["used"])
        script = record.get("script") or {}
        add(f"script {script.get('file')}", script["sha256"][:12] if script.get("sha256") else None)
        for kind in ("data", "model"):
            source = record.get(kind) or {}
            digests = [file.get("sha256", "")[:12] for file in source.get("files") or []]
            add(f"{kind} {source.get({'data': 'dataset'}.get(kind, kind))}", " ".join(digests) or None)
    return facts
