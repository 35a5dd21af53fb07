"""Speed-up and efficiency against one device, what they imply, and the spread over repeats."""

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.evidence import Configuration, configurations_in, parameters_of
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import BYTES, PERCENT, percent, units_of
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import workload_of
from multicard.stats.interval import Interval, interval_columns
from multicard.stats.pool import Pool
from multicard.stats.samples import geometric_mean, ratio_by_block

RATES = ("throughput_samples_per_s", "tokens_per_s", "steps_per_s")  # work over time, by what counts it
ENDS = ("", "_low", "_high")
SAME_WORK = 0.05  # relative difference of the samples of a step up to which they are the same
# Shares of ideal scaling outside of which both sides may not have done the same work.
LEAST_EFFICIENCY, MOST_EFFICIENCY = 0.02, 1.1
BASELINE_DIFFERS = ("strategy", "devices", "nodes")  # parameters in which a baseline may differ


@dataclass(frozen=True)
class Speedup:
    """A configuration beside its baseline on one device, None without one."""

    configuration: Configuration
    baseline: Configuration | None
    over_blocks: Interval | None  # over the blocks of repeats; None without a baseline, or without rates
    kind: str  # how such configurations scale: strong, weak or unknown
    several_counts: bool  # whether they ran on several numbers of devices; else efficiency has no meaning

    @cached_property
    def rates(self) -> dict[int, float]:
        """Work per second by repeat."""
        return self.configuration.by_repeat(self.configuration.rate)

    @cached_property
    def base(self) -> dict[int, float]:
        """The same of the baseline; empty without one."""
        return self.baseline.by_repeat(self.configuration.rate) if self.baseline else {}

    @property
    def by_repeat(self) -> dict[int, float]:
        """Speed-up in each repeat that both have."""
        return ratio_by_block(self.rates, self.base)

    def of_repeat(self, repeat: int) -> float | None:
        """Speed-up of one repeat, over the baseline's mean where that has no such repeat; None if unknown."""
        rate, base = self.rates.get(repeat), self.base.get(repeat, geometric_mean(self.base))
        return rate / base if rate is not None and base else None

    def efficiency(self, speedup: Interval | None) -> Interval | None:
        """Return a speed-up per device; None where it has no meaning."""
        devices = self.configuration["devices"]
        return speedup.map(lambda times: times / devices) if speedup and self.several_counts else None

    @property
    def baseline_words(self) -> str | None:
        """Name of the baseline."""
        work = self.configuration.workload
        return work.baseline_words(self.baseline[work.method]) if self.baseline else None


def implausible(speedup: float, devices: int) -> str | None:
    """Return the doubt of a speed-up far above or below ideal scaling, in words; None of any other.

    >>> implausible(5.0, 4)
    '125% efficient: above ideal; check that both sides do the same work'
    >>> implausible(0.05, 4)
    '1.2% efficient: almost nothing of ideal; check that both sides do the same work'
    >>> implausible(4.3, 4), implausible(0.1, 4)
    (None, None)
    """
    efficiency = speedup / devices
    if devices == 1 or LEAST_EFFICIENCY <= efficiency <= MOST_EFFICIENCY:
        return None
    how = "above ideal" if efficiency > 1 else "almost nothing of ideal"
    return f"{percent(efficiency)} efficient: {how}; check that both sides do the same work"


def speedups_of(configurations: Sequence[Configuration]) -> list[Speedup]:
    """Compare each configuration with its baseline, which differs at most in `BASELINE_DIFFERS`.

    Intervals are by the scatter of all that are given, as those of a scenario, or of a job on one kind of machine.
    """
    together: dict[Hashable, list[int]] = defaultdict(list)
    for index, each in enumerate(configurations):
        together[each.rest(BASELINE_DIFFERS)].append(index)
    pool = Pool([*(each.blocks(each.rate) for each in configurations), {}])
    without_baseline = len(configurations)
    found: dict[int, Speedup] = {}
    for alike in together.values():
        work = configurations[alike[0]].workload
        rated = [index for index in alike if configurations[index].blocks(configurations[index].rate)]
        on_one = {configurations[i][work.method]: i for i in rated if configurations[i]["devices"] == 1}
        bases = [_baseline(configurations[index], on_one) for index in alike]
        several = len({configurations[index]["devices"] for index in rated}) > 1
        pairs = [
            (configurations[index], None if base is None else configurations[base])
            for index, base in zip(alike, bases, strict=True)
        ]
        kind = _kind(pairs)
        for index, base, (each, baseline) in zip(alike, bases, pairs, strict=True):
            ratio = pool.ratio(index, without_baseline if base is None else base)
            found[index] = Speedup(each, baseline, ratio, kind, several)
    return [found[index] for index in range(len(configurations))]


def _baseline(configuration: Configuration, on_one: Mapping[Any, int]) -> int | None:
    """Return the index of the baseline among those `on_one` device, by their method; None where it did not run."""
    work = configuration.workload
    return next((on_one[name] for name in work.baselines(configuration[work.method]) if name in on_one), None)


def _kind(pairs: Sequence[tuple[Configuration, Configuration | None]]) -> str:
    """Kind of scaling of configurations that differ in their devices, each with its baseline.

    As stated; of LLM runs always weak; of scripts by the work of a step over the baseline's: `strong` where it stays
    the same, `weak` where it grows with the devices, else `unknown`.
    """
    first = pairs[0][0]
    if not first.workload.is_user_program:
        return first["scaling"] or "weak"
    grown = [(_work(one) / _work(base), one["devices"]) for one, base in pairs if one["devices"] > 1 and one.completed]
    for kind, power in (("strong", 0), ("weak", 1)):
        if grown and all(np.isclose(ratio, devices**power, rtol=SAME_WORK) for ratio, devices in grown):
            return kind
    return "unknown"


def _work(configuration: Configuration | None) -> float:
    """Units of work of a step, median over repeats; not a number where it is not known."""
    if configuration is None:
        return math.nan
    rates, seconds = configuration.blocks(configuration.rate), configuration.blocks("iteration_time_s")
    return median([rates[repeat] * seconds[repeat] for repeat in rates if repeat in seconds] or [math.nan])


def add_scaling(measures: pd.DataFrame) -> pd.DataFrame:
    """Add `baseline`, `speedup` and `efficiency` to the measures of one scenario.

    Speed-up is the throughput over that of the baseline: the run with the same other parameters on one device, of
    vision runs under the strategy `single` where the scenario has it, else under the same strategy. Throughput counts
    distinct samples in vision runs, tokens in LLM runs. The baseline is the repeat of the same number, else the
    geometric mean of all its repeats. Efficiency is the speed-up per device. Where there is no baseline both are empty,
    and so is efficiency where no such run has another number of devices.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for each in speedups_of(configurations_in(measures)):
        for run in each.configuration.completed:
            speedup = each.of_repeat(run.repeat)
            per_device = each.several_counts and speedup and speedup / each.configuration["devices"]
            found[run.run] = each.baseline_words, speedup, per_device or None
    rows = [found.get(run, (None, None, None)) for run in measures["run"]]
    columns = zip(("baseline", "speedup", "efficiency"), ("string", "Float64", "Float64"), strict=True)
    return measures.assign(
        **{name: pd.array([row[at] for row in rows], dtype=kind) for at, (name, kind) in enumerate(columns)}
    )


def over_repeats(measures: pd.DataFrame, values: list[str], lost: bool = False) -> pd.DataFrame:
    """Each value of each configuration over its completed repeats.

    Gives one row per configuration that a run completed, with `lost` one of each: its parameters, `repeats`, and for
    each value `<value>`, `<value>_low` and `<value>_high`. A value is the geometric mean with its 95% interval, of
    shares and of what is not above zero throughout the arithmetic mean (`stats.pool.Pool.mean`); `speedup` and
    `efficiency` are those of `speedups`. Bounds are empty where fewer than two repeats are known. With `lost` there is
    the `outcome`, too: completed where one repeat did.
    """
    runs = measures if lost else measures[measures["outcome"] == "completed"]
    found = configurations_in(runs)
    table = parameters_of(runs).assign(repeats=np.array([len(each.completed) for each in found], dtype=int))
    scaling = _scaling(speedups_of(found))
    for value in values:
        own = scaling.get(value) or _means(value, [each.blocks(value) for each in found])
        table = table.assign(**columns_of(value, own))
    ended = ["completed" if each.completed else each.runs[0].values["outcome"] for each in found]
    return table.assign(outcome=ended) if lost else table


def speedups(measures: pd.DataFrame) -> pd.DataFrame:
    """Speed-up and efficiency of each configuration of one scenario, with intervals over repeats, as in `add_scaling`.

    Gives one row per configuration that a run completed: its parameters, `scaling` (of LLM runs always weak, of
    scripts by the samples of their steps, or unknown), `repeats`, `baseline`, and `speedup` and `efficiency` with
    `…_low` and `…_high`.
    """
    found = speedups_of(configurations_in(measures))
    repeats = np.array([len(each.configuration.completed) for each in found], dtype=int)
    table = parameters_of(measures).assign(
        scaling=[each.kind for each in found], repeats=repeats, baseline=[each.baseline_words for each in found]
    )
    for value, intervals in _scaling(found).items():
        table = table.assign(**columns_of(value, intervals))
    return table[repeats > 0].reset_index(drop=True)


def speedup_table(measures: pd.DataFrame, always: Collection[str] = ()) -> pd.DataFrame:
    """Return `speedups` without the parameters that all rows share, or that follow the preset, but for `always`."""
    table = speedups(measures)
    if table.empty:
        return table
    names, work = parameters_in(table), workload_of(table)
    found = work.varying(table, [name for name in names if name not in ("devices", "scaling")])
    chosen = {*(found or [work.default_label]), *always} - {"devices", "scaling"}
    shown = [*(name for name in names if name in chosen), "devices", "scaling"]
    return table[[*shown, *(name for name in table if name not in {*names, "scaling"})]]


def kinds_of(scenarios: Iterable[ScenarioTables]) -> dict[str, str]:
    """How the configuration of each run of some scenarios scales: strong, weak or unknown."""
    found: dict[str, str] = {}
    for tables in scenarios:
        for each in speedups_of(configurations_in(tables.measures)):
            found = {run.run: each.kind for run in each.configuration.runs} | found
    return found


def throughput_of(measures: pd.DataFrame) -> str:
    """Name of the throughput of a table of runs: in its workload's unit, or in steps where that is known of none."""
    rate = workload_of(measures).unit.throughput
    return "steps_per_s" if "steps_per_s" in measures and measures[rate].isna().all() else rate


def throughputs_of(measures: pd.DataFrame) -> list[str]:
    """The same, and that in tokens where it is known of any run."""
    has_tokens = "tokens_per_s" in measures and measures["tokens_per_s"].notna().any()
    return list(dict.fromkeys([throughput_of(measures), *(["tokens_per_s"] if has_tokens else [])]))


def _scaling(found: Sequence[Speedup]) -> dict[str, list[Interval | None]]:
    """Speed-up and efficiency, of a baseline itself without bounds."""
    speedup = [
        each.over_blocks.without_bounds()
        if each.over_blocks and each.baseline is each.configuration
        else each.over_blocks
        for each in found
    ]
    efficiency = [each.efficiency(interval) for each, interval in zip(found, speedup, strict=True)]
    return {"speedup": speedup, "efficiency": efficiency}


def _means(value: str, samples: Sequence[Mapping[Any, float]]) -> list[Interval | None]:
    """Means of the samples of a value; those of shares stay within 0 and 1."""
    is_share = units_of(value) is PERCENT
    logs = not is_share and all(number > 0 for own in samples for number in own.values())
    pool = Pool(samples, logs, exact=units_of(value) is BYTES)
    found = [pool.mean(index) for index in range(len(samples))]
    if not is_share or not all(0 <= number <= 1 for own in samples for number in own.values()):
        return found
    return [each and each.map(lambda end: min(1.0, max(0.0, end))) for each in found]


def columns_of(value: str, intervals: Sequence[Interval | None]) -> dict[str, np.ndarray]:
    """Columns of a value and its bounds, a row per interval, empty where there is none."""
    rows = [list(interval_columns(value, each).values()) for each in intervals]
    return {f"{value}{end}": np.array([row[at] for row in rows], dtype=float) for at, end in enumerate(ENDS)}
