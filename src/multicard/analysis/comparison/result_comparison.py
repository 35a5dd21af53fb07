"""Two sets of results compared: what became faster or slower per configuration, and what else differs.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from multicard.analysis.evidence import names_synthetic
from multicard.analysis.pooling import Pool
from multicard.analysis.runs.conditions import disturbance, how_many
from multicard.analysis.runs.measures import measure_run
from multicard.analysis.runs.notices import notices
from multicard.analysis.runs.run_files import read_record
from multicard.analysis.scaling.speedup import RATES, add_scaling
from multicard.analysis.statistics import Interval, corrected, mean_of, product_of, verdict
from multicard.core.text import gpu_name
from multicard.core.units import BYTES, with_unit
from multicard.experiment.parameters import as_columns
from multicard.experiment.workload import parameters_of

# Compared measures, and the words for more and for less of each. A measure that neither side has is skipped.
WORDS: dict[str, tuple[str, str]] = {
    "iteration_time_s": ("slower", "faster"),
    **dict.fromkeys(RATES, ("faster", "slower")),
    "speedup": ("scales better", "scales worse"),
    "peak_memory_bytes": ("more memory", "less memory"),
    "energy_per_sample_j": ("more energy", "less energy"),
    "energy_per_token_j": ("more energy", "less energy"),
    "test_accuracy": ("higher", "lower"),
    "test_loss": ("higher", "lower"),
    "loss_at_end": ("higher", "lower"),
}
SAME_WORK = 1e-6  # relative difference of the work of a step up to which it is the same
INCONCLUSIVE, CANNOT_TELL = "inconclusive", "cannot tell"
NOT_IN_A, NOT_IN_B = "measured in b only", "measured in a only"
MACHINE = "machine"  # the entry of the environment that is its name
HARDWARE = ("processor", "logical_cpus", "usable_cpus", "GPUs", "number of GPUs")  # the entries that set the speed
NOT_RECORDED = "not recorded"
DISTURBED_RUNS = "disturbed runs"  # the entry that counts them
REPEAT = re.compile(r"_r\d+(?=$|_[0-9a-f]{12}$)")


@dataclass(frozen=True)
class Configuration:
    """The runs of one configuration: its name, its parameters but the repeat, and what its runs measured.

    Attributes
    ----------
    name
        Id of its runs, less the repeat.
    parameters
        As columns of measures.csv.
    outcomes
        Outcome of each run, by its id.
    values
        Of each measure those of the completed runs that have it.
    doubts
        Of completed runs whose numbers are in doubt: their ids, and why.
    runs
        Ids of the runs that the values of each measure are of.
    """

    name: str
    parameters: dict[str, Any]
    outcomes: dict[str, str]
    values: dict[str, list[float]]
    doubts: dict[str, list[str]]
    runs: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One set of results: the record of each run by its id, and the configurations by what tells them apart."""

    records: dict[str, dict[str, Any]]
    configurations: dict[str, Configuration]

    def records_of(self, keys: Collection[str]) -> list[dict[str, Any]]:
        """Records of the runs of some configurations."""
        return [self.records[run] for key in keys for run in self.configurations[key].outcomes]

    @property
    def is_synthetic(self) -> bool:
        """Whether there are synthetic runs, by the names of machines, processors or GPUs."""
        facts = _facts(list(self.records.values()), ())
        return names_synthetic(value for name in (MACHINE, "processor", "GPUs") for value in facts.get(name, ()))


@dataclass(frozen=True)
class Change:
    """One measure of one configuration: its geometric means over repeats, and their ratio, b over a.

    `verdict` is in words; `repeats` counts the completed runs of each side that have the measure. The mean of a side
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
    """Compare two sets of run directories, see `compare_sides`.

    Raises
    ------
    UserError
        If a file of a run is missing or damaged.
    """
    return compare_sides(read_side(a), read_side(b))


def read_side(folders: Sequence[Path]) -> Side:
    """Measure one set of run directories.

    Raises
    ------
    UserError
        If a file of a run is missing or damaged.
    """
    records: dict[str, dict[str, Any]] = {}
    configurations: dict[str, Configuration] = {}
    for row, record in zip(_measured(folders), map(read_record, folders), strict=True):
        run = row["run"]
        records[run] = record
        parameters = as_columns({name: value for name, value in _stated(record).items() if name != "repeat"})
        found = configurations.setdefault(
            repr(sorted(parameters.items())), Configuration(REPEAT.sub("", run), parameters, {}, {}, {})
        )
        found.outcomes[run] = row["outcome"]
        if why := notices(row):
            found.doubts[run] = why
        for measure in WORDS if row["outcome"] == "completed" else ():
            if not pd.isna(row.get(measure)):
                found.values.setdefault(measure, []).append(float(row[measure]))
                found.runs.setdefault(measure, []).append(run)
    return Side(records, configurations)


def _stated(record: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a run, with the defaults of those that came after it was recorded."""
    try:
        return parameters_of(record["parameters"]).model_dump(mode="json")
    except ValidationError:
        return record["parameters"]


def compare_sides(a: Side, b: Side) -> ResultComparison:
    """Compare two sets of results.

    Repeats of the two sides did not run in turn, so they are not paired. Verdicts are corrected for all rows of
    `changes`, of which iteration time and a throughput that follows from it are one. One repeat gives no interval, and
    so no verdict.
    """
    shared = [run for run in a.records if run in b.records]
    return ResultComparison(
        changes=_changes(a.configurations, b.configurations),
        outcomes=[
            (run, *outcomes)
            for run in shared
            if len(set(outcomes := tuple(side.records[run]["outcome"] for side in (a, b)))) > 1
        ],
        only_a=[run for run in a.records if run not in b.records],
        only_b=[run for run in b.records if run not in a.records],
        environment=environment_differences(*([side.records[run] for run in shared] for side in (a, b))),
        notices=[
            (name, run, "; ".join(why))
            for name, side in (("a", a), ("b", b))
            for each in side.configurations.values()
            for run, why in each.doubts.items()
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


def _changes(a: dict[str, Configuration], b: dict[str, Configuration]) -> list[Change]:
    """Of configurations that completed on both sides, the measures that either has."""
    found = [
        (one.name, measure, one.values.get(measure, []), b[key].values.get(measure, []))
        for key, one in a.items()
        if key in b and one.values and b[key].values
        for measure in WORDS
        if measure in one.values or measure in b[key].values
    ]
    ratios = _corrected(found)
    return [
        Change(
            configuration=name,
            measure=measure,
            a=typical(before),
            b=typical(after),
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
    ratios = ratios_of([(measure, before, after) for _, measure, before, after in found])
    for ratio, (name, measure, before, after) in zip(ratios, found, strict=True):
        # Where the work is the same in all runs, a rate is the same comparison as the iteration time.
        twin = measure in RATES and _same_work(times.get(name, []), before + after)
        keys.append((name, "iteration_time_s" if twin else measure))
        tests.setdefault(keys[-1], ratio)
    adjusted = dict(zip(tests, corrected(list(tests.values())), strict=True))
    return [replace(ratio, p_value=adjusted[key].p_value) for key, ratio in zip(keys, ratios, strict=True)]


def ratios_of(found: Sequence[tuple[str, list[float], list[float]]]) -> list[Interval]:
    """Ratios of a measure after to before, by the scatter of all configurations and both sides."""
    pools = {
        kind: Pool([values for measure, *sides in found if measure == kind for values in sides])
        for kind in {measure for measure, *_ in found}
    }
    place = dict.fromkeys(pools, 0)
    ratios = []
    for measure, *_ in found:
        ratios.append(pools[measure].ratio(place[measure] + 1, place[measure]))
        place[measure] += 2
    return ratios


def typical(values: Sequence[float]) -> float | None:
    """Geometric mean; the arithmetic one where it has none; None without values."""
    mean = product_of([(1.0, values)]).value
    return mean_of(values).value if mean is None else mean


def _same_work(times: list[float], rates: list[float]) -> bool:
    """Whether time per step × rate, the work of a step, is the same in all runs."""
    if not times or len(times) != len(rates):
        return False
    work = [time * rate for time, rate in zip(times, rates, strict=True)]
    return max(work) - min(work) <= SAME_WORK * max(work)


def _word(measure: str, ratio: Interval) -> str:
    more, less = WORDS[measure]
    return {"more": more, "less": less, "none": INCONCLUSIVE, "unknown": CANNOT_TELL}[verdict(ratio)]


def environment_differences(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """What differs between the machines, versions, variables and data of two sets of records, see `environment`."""
    variables = sorted({name for record in [*a, *b] for name in record.get("variables") or {}})
    sides = [_facts(records, variables) for records in (a, b)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [(name, *(", ".join(sorted(side.get(name, ()))) or NOT_RECORDED for side in sides)) for name in names]
    differing = [(name, before, after) for name, before, after in rows if before != after]
    disturbed = [[text for record in records if (text := disturbance(record))] for records in (a, b)]
    if any(disturbed):
        counts = [how_many(texts, len(records)) for texts, records in zip(disturbed, (a, b), strict=True)]
        differing.append((DISTURBED_RUNS, *counts))
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
            add("GPUs", gpu_name(gpu.get("name")) + (f" ({with_unit(memory, BYTES)})" if memory else ""))
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
