"""What varies among the runs of a scenario, and configurations of them compared: what figures draw."""

from collections.abc import Sequence
from typing import get_args

import numpy as np
import pandas as pd

from multicard.analysis.evidence import configurations_in, parameters_of
from multicard.analysis.scaling.speedup_tables import columns_of
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import WORKLOADS, workload_of
from multicard.stats.corrections import corrected
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool


def _values(parameter: str) -> tuple[object, ...]:
    """Values of a parameter, as its type lists them; what is off comes first."""
    fields = (work.parameters.model_fields for work in WORKLOADS.values())
    kind = next(each[parameter].annotation for each in fields if parameter in each)
    return tuple(sorted((False, True) if kind is bool else get_args(kind), key=lambda value: value != "none"))


# Values in the order in which each is compared with the first that completed.
ORDER = {
    name: _values(name) for name in ("precision", "pin_memory", "loader", "layout", "binding", "preset", "profiler")
}

QUANTILES = {"p1_s": 0.01, "p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p99_s": 0.99}


def varied(measures: pd.DataFrame, besides: tuple[str, ...]) -> list[str]:
    """Parameters with more than one value among the runs, except those named and those that follow the preset."""
    names = [name for name in parameters_in(measures) if name not in besides]
    return workload_of(measures).varying(measures, names)


def means(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """Mean of each value over the completed repeats of a configuration: its parameters, `repeats`, the values."""
    completed = measures[measures["outcome"] == "completed"]
    groups = completed.groupby(list(parameters_of(measures)), sort=False, dropna=False)
    return pd.DataFrame({"repeats": groups.size(), **groups[values].mean()}).reset_index()


def gains(measures: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """Speed gain over the base value: one row per compared value and configuration of the other parameters.

    Columns: `base`, `value`, the other varied parameters, `devices`, `repeats` compared; `gain` = time per step with
    the base over time with the value − 1, its interval `gain_low` and `gain_high` (empty where one of them has one
    repeat), and the `verdict` of `statistics`: whether that is `more`, `less` or no (`none`) speed, corrected for all
    rows. Profilers are those of `as_used`.
    """
    measures = as_used(measures, parameter)
    by = [*varied(measures, besides=(parameter, "devices", "repeat")), "devices"]
    completed = measures[(measures["outcome"] == "completed") & measures["iteration_time_s"].notna()]
    places = {(each[parameter], tuple(map(each.parameters.get, by))): each for each in configurations_in(completed)}
    groups = {group: number for number, group in enumerate(dict.fromkeys(group for _, group in places))}
    present = [value for value in ORDER[parameter] if any(value == known for known, _ in places)]
    pairs = [
        (value, group)
        for value in present[1:]
        for group in groups
        if {(value, group), (present[0], group)} <= places.keys()
    ]
    pool = Pool([each.blocks("iteration_time_s") for each in places.values()])
    at = {place: index for index, place in enumerate(places)}
    ratios = [pool.ratio(at[present[0], group], at[value, group]) for value, group in pairs]
    found = completed[by].drop_duplicates().iloc[[groups[group] for _, group in pairs]].reset_index(drop=True)
    found.insert(0, "base", present[0] if present else None)
    found.insert(1, "value", pd.Series([value for value, _ in pairs], dtype=object))
    return pd.concat([found, _excess("gain", ratios)], axis="columns")


def as_used(measures: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """The measures with the profilers that were used, where `parameter` is these: `auto` is another on each machine."""
    if parameter == "profiler" and "profiler_used" in measures:
        return measures.assign(profiler=measures["profiler_used"].fillna(measures["profiler"]))
    return measures


def overheads(measures: pd.DataFrame) -> pd.DataFrame:
    """Profiling overhead of each configuration that has one.

    Gives its parameters, `repeats`, `profiler_overhead`, `profiler_overhead_low` and `profiler_overhead_high`: the
    geometric mean over repeats of profiled over measured iteration time, less 1, and the `verdict`, corrected for all
    rows.
    """
    known = measures[(measures["outcome"] == "completed") & measures["profiler_overhead"].notna()]
    samples = [each.blocks("profiler_overhead") for each in configurations_in(known)]
    pool = Pool([{block: 1 + value for block, value in own.items()} for own in samples])
    ratios = [pool.mean(index) for index in range(len(samples))]
    return pd.concat([parameters_of(known), _excess("profiler_overhead", ratios)], axis=1)


def _excess(name: str, ratios: Sequence[Interval | None]) -> pd.DataFrame:
    """Ratios less 1 with their bounds, the `repeats`, and the `verdict` on each, corrected for all."""
    numbers = columns_of(name, [each and each.map(lambda times: times - 1) for each in ratios])
    verdicts = pd.Series([verdict(each) for each in corrected(ratios)], dtype=object)
    return pd.DataFrame(
        {
            "repeats": pd.Series([each.repeats if each else 0 for each in ratios], dtype=int),
            **numbers,
            "verdict": verdicts,
        }
    )


def quantiles_of_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of the step times of each `configuration`: its `steps`, the `lowest_s`, `QUANTILES`, `highest_s`."""
    rows = []
    for name, times in steps.groupby("configuration", sort=False)["duration_s"]:
        found = dict(zip(QUANTILES, np.quantile(times, list(QUANTILES.values())), strict=True))
        ends = times.min(), times.max()
        rows.append({"configuration": name, "steps": len(times), "lowest_s": ends[0], **found, "highest_s": ends[1]})
    return pd.DataFrame(rows)
