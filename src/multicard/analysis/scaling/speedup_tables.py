"""Tables of one scenario: speed-up and efficiency, and values over the repeats of each configuration."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.evidence import Configuration, configurations_in, parameters_of
from multicard.analysis.scaling.speedup import Speedup, speedups_of
from multicard.core.units import BYTES, PERCENT, units_of
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import workload_of
from multicard.stats.interval import Interval, interval_columns
from multicard.stats.pool import Pool


@dataclass(frozen=True)
class _RunSpeedup:
    """The speed-up of one run; empty for a run that did not complete."""

    baseline: str | None = None
    speedup: float | None = None
    efficiency: float | None = None


def add_scaling(measures: pd.DataFrame) -> pd.DataFrame:
    """Add `baseline`, `speedup` and `efficiency` to the measures of one scenario.

    Speed-up is the throughput over that of the baseline: the run with the same other parameters on one device, of
    vision runs under the strategy `single` where the scenario has it, else under the same strategy. Throughput counts
    distinct samples in vision runs, tokens in LLM runs. The baseline is the repeat of the same number, else the
    geometric mean of all its repeats. Efficiency is the speed-up per device. Where there is no baseline both are empty,
    and so is efficiency where no such run has another number of devices.
    """
    by_run = _speedups_by_run(speedups_of(configurations_in(measures)))
    rows = [by_run.get(run, _RunSpeedup()) for run in measures["run"]]
    return measures.assign(
        baseline=pd.array([row.baseline for row in rows], dtype="string"),
        speedup=pd.array([row.speedup for row in rows], dtype="Float64"),
        efficiency=pd.array([row.efficiency for row in rows], dtype="Float64"),
    )


def _speedups_by_run(all_speedups: Sequence[Speedup]) -> dict[str, _RunSpeedup]:
    """Return the speed-up of each completed run."""
    by_run: dict[str, _RunSpeedup] = {}
    for speedup in all_speedups:
        for run in speedup.configuration.completed:
            times = speedup.of_repeat(run.repeat)
            efficiency = None
            if times and speedup.has_efficiency:
                efficiency = times / speedup.configuration["devices"]
            by_run[run.run] = _RunSpeedup(speedup.baseline_words, times, efficiency)
    return by_run


def over_repeats(measures: pd.DataFrame, values: Sequence[str], include_lost: bool = False) -> pd.DataFrame:
    """Return each value of each configuration over its completed repeats, with intervals.

    There is a row per configuration that a run completed, with `include_lost` one of each: its parameters, `repeats`,
    and for each value `<value>`, `<value>_low` and `<value>_high`. A value is the geometric mean with its 95% interval,
    of shares and of what is not above zero throughout the arithmetic mean (`stats.pool.Pool.mean`); `speedup` and
    `efficiency` are those of `speedups`. Bounds are empty where fewer than two repeats are known. With `include_lost`
    there is the `outcome`, too: completed where one repeat did.
    """
    runs = measures
    if not include_lost:
        runs = measures[measures["outcome"] == "completed"]
    configurations = configurations_in(runs)
    repeats = [len(configuration.completed) for configuration in configurations]
    table = parameters_of(runs).assign(repeats=np.array(repeats, dtype=int))
    speedup_intervals = _speedup_intervals(speedups_of(configurations))
    for value in values:
        intervals = speedup_intervals.get(value)
        if intervals is None:
            intervals = _means(value, [configuration.blocks(value) for configuration in configurations])
        table = table.assign(**columns_of(value, intervals))
    if include_lost:
        table = table.assign(outcome=[_outcome(configuration) for configuration in configurations])
    return table


def _outcome(configuration: Configuration) -> str:
    if configuration.completed:
        return "completed"
    return str(configuration.runs[0].values["outcome"])


def speedups(measures: pd.DataFrame) -> pd.DataFrame:
    """Return speed-up and efficiency of each configuration of one scenario, with intervals over repeats.

    There is a row per configuration that a run completed: its parameters, `scaling` (of LLM runs always weak, of
    scripts by the samples of their steps, or unknown), `repeats`, `baseline`, and `speedup` and `efficiency` with
    `…_low` and `…_high`; `add_scaling` says what these are.
    """
    all_speedups = speedups_of(configurations_in(measures))
    repeats = np.array([len(speedup.configuration.completed) for speedup in all_speedups], dtype=int)
    table = parameters_of(measures).assign(
        scaling=[speedup.scaling for speedup in all_speedups],
        repeats=repeats,
        baseline=[speedup.baseline_words for speedup in all_speedups],
    )
    for name, intervals in _speedup_intervals(all_speedups).items():
        table = table.assign(**columns_of(name, intervals))
    return table[repeats > 0].reset_index(drop=True)


def speedup_table(measures: pd.DataFrame, always: Collection[str] = ()) -> pd.DataFrame:
    """Return `speedups` without the parameters that all rows share, or that follow the preset, but for `always`."""
    table = speedups(measures)
    if table.empty:
        return table
    parameters = parameters_in(table)
    workload = workload_of(table)
    # These are always shown, after the other parameters.
    last = ("devices", "scaling")
    candidates = [name for name in parameters if name not in last]
    varied = workload.varying(table, candidates) or [workload.default_label]
    labels = [name for name in candidates if name in varied or name in always]
    measured = [name for name in table if name not in parameters and name not in last]
    return table[[*labels, *last, *measured]]


def throughput_of(measures: pd.DataFrame) -> str:
    """Return the measure of throughput of a table of runs: in its workload's unit, or in steps if no run has that."""
    rate = workload_of(measures).unit.throughput
    counts_steps = "steps_per_s" in measures and measures[rate].isna().all()
    return "steps_per_s" if counts_steps else rate


def throughputs_of(measures: pd.DataFrame) -> list[str]:
    """Return the measures of throughput to show: `throughput_of`, and the one in tokens if any run has it."""
    rate = throughput_of(measures)
    has_tokens = "tokens_per_s" in measures and measures["tokens_per_s"].notna().any()
    return [rate, "tokens_per_s"] if has_tokens and rate != "tokens_per_s" else [rate]


def columns_of(name: str, intervals: Sequence[Interval | None]) -> dict[str, np.ndarray]:
    """Return the columns `<name>`, `<name>_low` and `<name>_high` with a row per interval, empty where it is None.

    >>> columns_of("speedup", [Interval(1.9, 1.8, 2.0, 3), None])
    {'speedup': array([1.9, nan]), 'speedup_low': array([1.8, nan]), 'speedup_high': array([ 2., nan])}
    """
    rows = [interval_columns(name, interval) for interval in intervals]
    columns = list(interval_columns(name, None))
    return {column: np.array([row[column] for row in rows], dtype=float) for column in columns}


def _speedup_intervals(all_speedups: Sequence[Speedup]) -> dict[str, list[Interval | None]]:
    """Return the intervals of speed-up and efficiency, by name, in the order of the speed-ups."""
    means = [_shown_mean(speedup) for speedup in all_speedups]
    efficiencies = [speedup.efficiency(mean) for speedup, mean in zip(all_speedups, means, strict=True)]
    return {"speedup": means, "efficiency": efficiencies}


def _shown_mean(speedup: Speedup) -> Interval | None:
    """Return the mean speed-up, of a baseline itself without bounds: its speed-up is 1 by definition."""
    if speedup.mean is not None and speedup.baseline is speedup.configuration:
        return speedup.mean.without_bounds()
    return speedup.mean


def _means(value: str, samples: Sequence[Mapping[Any, float]]) -> list[Interval | None]:
    """Return the mean of a value in each sample, None where it has no number.

    Shares have arithmetic means, whose bounds stay within 0 and 1: here 0.1 ± 4.30 · 0.1 / √3.

    >>> [mean] = _means("data_share", [{1: 0.0, 2: 0.1, 3: 0.2}])
    >>> round(mean.value, 3), mean.low, round(mean.high, 3)
    (0.1, 0.0, 0.348)
    """
    numbers = [number for sample in samples for number in sample.values()]
    is_share = units_of(value) is PERCENT
    has_logs = not is_share and all(number > 0 for number in numbers)
    pool = Pool(samples, has_logs, exact=units_of(value) is BYTES)
    means = [pool.mean(position) for position in range(len(samples))]
    # Some columns with the unit of shares are none, such as an overhead, which may be below 0.
    is_within_one = all(0 <= number <= 1 for number in numbers)
    if not (is_share and is_within_one):
        return means
    return [None if mean is None else mean.map(_within_one) for mean in means]


def _within_one(share: float) -> float:
    return min(1.0, max(0.0, share))
