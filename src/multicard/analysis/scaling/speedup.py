"""Speed-up and efficiency against one device, what they imply, and the spread over repeats."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from multicard.analysis.pooling import Pool
from multicard.analysis.statistics import Interval, geometric_mean, ratio_by_block
from multicard.core.units import PERCENT, units_of
from multicard.experiment.config import parameters_in
from multicard.experiment.workload import Workload, workload_of

if TYPE_CHECKING:
    from multicard.analysis.evidence import Configuration
    from multicard.analysis.scenario_tables import ScenarioTables

RATES = ("throughput_samples_per_s", "tokens_per_s", "steps_per_s")  # work over time, by what counts it
ENDS = ("", "_low", "_high")
SAME_WORK = 0.05  # relative difference of the samples of a step up to which they are the same
BASELINE_DIFFERS = ("strategy", "devices", "nodes")  # parameters in which a baseline may differ


@dataclass(frozen=True)
class Speedup:
    """Rates of a configuration by block of repeats, beside those of its baseline.

    Attributes
    ----------
    baseline
        Index of the configuration on one device that it is compared with, or -1.
    rates, base
        Work per second by block: its own, and the baseline's (empty without one).
    over_blocks
        Speed-up over the blocks, with its interval.
    """

    baseline: int
    rates: Mapping[int, float]
    base: Mapping[int, float]
    over_blocks: Interval

    @cached_property
    def base_rate(self) -> float:
        """Geometric mean of the baseline's rates; not a number without one."""
        mean = geometric_mean(self.base)
        return math.nan if mean is None else mean

    @property
    def by_block(self) -> dict[int, float]:
        """Speed-up in each block that both have."""
        return ratio_by_block(self.rates, self.base)

    def of_repeat(self, repeat: int) -> float:
        """Speed-up of one repeat, over the baseline's mean where its block has none; not a number if unknown."""
        base = self.base.get(repeat, self.base_rate)
        return self.rates.get(repeat, math.nan) / base if base else math.nan


def speedups_of(configurations: Iterable[tuple[Hashable, Workload, str, int, Mapping[int, float]]]) -> list[Speedup]:
    """Compare each configuration with its baseline.

    `configurations`: of each: what it shares with its baseline (all but `BASELINE_DIFFERS`), its workload, the value of
    the workload's `method`, its number of devices, and its rates by block.
    """
    rows = list(configurations)
    on_one = {
        (shared, method): index
        for index, (shared, _, method, devices, rates) in enumerate(rows)
        if rates and devices == 1
    }
    together: dict[Hashable, list[int]] = {}
    for index, (shared, *_) in enumerate(rows):
        together.setdefault(shared, []).append(index)
    pools = {shared: Pool([*(rows[index][-1] for index in own), {}]) for shared, own in together.items()}
    found = []
    for place, (shared, work, method, _, rates) in enumerate(rows):
        baselines = ((shared, base) for base in work.baselines(method))
        index = next((on_one[each] for each in baselines if each in on_one), -1)
        own = together[shared]
        ratio = pools[shared].ratio(own.index(place), own.index(index) if index >= 0 else len(own))
        found.append(Speedup(index, rates, rows[index][-1] if index >= 0 else {}, ratio))
    return found


def speedups_between(configurations: Sequence["Configuration"], rate: str | None = None) -> list[Speedup]:
    """As `speedups_of`, of the configurations of some evidence, by a rate or each by that of its workload."""
    return speedups_of(
        (
            one.rest(BASELINE_DIFFERS), one.workload, one[one.workload.method], one["devices"],
            one.blocks(rate or one.rate),
        )
        for one in configurations
    )  # fmt: skip


def add_scaling(measures: pd.DataFrame) -> pd.DataFrame:
    """Add `baseline`, `speedup` and `efficiency` to the measures of one scenario.

    Speed-up is the throughput over that of the baseline: the run with the same other parameters on one device, of
    vision runs under the strategy `single` where the scenario has it, else under the same strategy. Throughput counts
    distinct samples in vision runs, tokens in LLM runs. The baseline is the repeat of the same number, else the
    geometric mean of all its repeats. Efficiency is the speed-up per device. Where there is no baseline both are empty,
    and so is efficiency where no such run has another number of devices.
    """
    of, compared = _compared(measures)
    row = compared.iloc[of].set_axis(measures.index)
    completed = measures["outcome"] == "completed"
    of_runs = [each.of_repeat(repeat) for each, repeat in zip(row["compared"], measures["repeat"], strict=True)]
    speedup = pd.Series(of_runs, index=measures.index, dtype=float).where(completed)
    scaled = {"speedup": speedup, "efficiency": (speedup / measures["devices"]).where(row["several_counts"])}
    return measures.assign(
        baseline=row["baseline"].where(completed).astype("string"),
        **{name: column.astype("Float64") for name, column in scaled.items()},
    )


def over_repeats(measures: pd.DataFrame, values: list[str], lost: bool = False) -> pd.DataFrame:
    """Each value of each configuration over its completed repeats.

    Gives one row per configuration in the order of their first completed runs, with `lost` one of each in the order of
    their first runs: its parameters, `repeats`, and for each value `<value>`, `<value>_low` and `<value>_high`. A value
    is the geometric mean with its 95% interval, of shares and of what is not above zero throughout the arithmetic mean
    (`pooling.Pool.mean`); `speedup` and `efficiency` are those of `speedups`. Bounds are empty where fewer than two
    repeats are known.
    """
    of, table = configurations(measures)
    runs = _completed(measures, of, len(table))
    table["repeats"] = np.array([len(own) for own in runs], dtype=int)
    scaling = _compared(measures)[1] if {"speedup", "efficiency"} & {*values} else table
    for value in values:
        if value in ("speedup", "efficiency"):
            table = table.assign(**scaling[[f"{value}{end}" for end in ENDS]])
        else:
            table = table.assign(**columns_of(value, _means(value, _samples(measures, value, runs))))
    ran = sorted((own[0], number) for number, own in enumerate(runs) if len(own))
    return table if lost else table.iloc[[number for _, number in ran]].reset_index(drop=True)


def speedups(measures: pd.DataFrame) -> pd.DataFrame:
    """Speed-up and efficiency of each configuration of one scenario, with intervals over repeats, as in `add_scaling`.

    Gives one row per configuration that a run completed: its parameters, `scaling` (of LLM runs always weak, of
    scripts by the samples of their steps, or unknown), `repeats`, `baseline`, and `speedup` and `efficiency` with
    `…_low` and `…_high`.
    """
    _, compared = _compared(measures)
    return compared[compared["repeats"] > 0].drop(columns=["compared", "several_counts"]).reset_index(drop=True)


def speedup_table(measures: pd.DataFrame) -> pd.DataFrame:
    """Give `speedups` without the parameters that all rows share, or that follow the preset."""
    table = speedups(measures)
    if table.empty:
        return table
    names, work = parameters_in(table), workload_of(table)
    found = work.varying(table, [name for name in names if name not in ("devices", "scaling")])
    shown = [*(found or [work.default_label]), "devices", "scaling"]
    return table[[*shown, *(name for name in table if name not in {*names, "scaling"})]]


def _compared(measures: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """Compare each configuration with its baseline.

    Gives the number of each run's configuration, and by that number what `speedups` gives, of all configurations;
    with `compared` (its `Speedup`) and `several_counts` (whether efficiency has a meaning).
    """
    of, table = configurations(measures)
    workload = workload_of(measures)
    runs, rate = _completed(measures, of, len(table)), workload.unit.throughput
    known = _samples(measures, rate, runs)
    way, devices = table[workload.method], table["devices"]
    alike, _ = configurations(table, besides=(*BASELINE_DIFFERS, "repeat"))
    found = speedups_of((*row[:1], workload, *row[1:]) for row in zip(alike, way, devices, known, strict=True))
    base_of = np.array([each.baseline for each in found], dtype=int)
    is_known = np.array([bool(rates) for rates in known], dtype=bool)
    several = (devices.where(is_known).groupby(alike).transform("nunique") > 1).to_numpy(dtype=bool)
    # The same in all repeats of vision runs, nearly so in those of LLM runs.
    work = _numbers(measures[rate]) * _numbers(measures["iteration_time_s"])
    work = work.where(measures["outcome"] == "completed").groupby(of).median().to_numpy()
    base_work = np.where(base_of >= 0, work[base_of], np.nan)

    speedup = pd.DataFrame(columns_of("speedup", [each.over_blocks for each in found]))
    speedup.loc[base_of == np.arange(len(table)), ["speedup_low", "speedup_high"]] = np.nan
    efficiency = speedup.div(devices.where(several), axis=0)
    return of, table.assign(
        scaling=table.get("scaling", _kind(work, base_work, devices, alike) if workload.is_user_program else "weak"),
        repeats=np.array([len(own) for own in runs], dtype=int),
        baseline=[workload.baseline_words(way.iloc[number]) if number >= 0 else None for number in base_of],
        **speedup,
        **efficiency.rename(columns=lambda name: name.replace("speedup", "efficiency")),
        compared=pd.Series(found, dtype=object),
        several_counts=several,
    )


def kinds_of(scenarios: Iterable["ScenarioTables"]) -> dict[str, str]:
    """How the configuration of each run of some scenarios scales, by `speedups`: strong, weak or unknown."""
    found: dict[str, str] = {}
    for each in scenarios:
        of, compared = _compared(each.measures)
        found |= dict(zip(each.measures["run"], compared["scaling"].iloc[of], strict=True)) | found
    return found


def throughput_of(measures: pd.DataFrame) -> str:
    """Name of the throughput of a table of runs: in its workload's unit, or in steps where that is known of none."""
    rate = workload_of(measures).unit.throughput
    return "steps_per_s" if "steps_per_s" in measures and measures[rate].isna().all() else rate


def throughputs_of(measures: pd.DataFrame) -> list[str]:
    """The same, and that in tokens where it is known of any run."""
    has_tokens = "tokens_per_s" in measures and measures["tokens_per_s"].notna().any()
    return list(dict.fromkeys([throughput_of(measures), *(["tokens_per_s"] if has_tokens else [])]))


def configurations(table: pd.DataFrame, besides: tuple[str, ...] = ("repeat",)) -> tuple[np.ndarray, pd.DataFrame]:
    """Number of each row's configuration, in the order of their first rows; and the parameters of each.

    Rows are of one configuration when all parameters agree, except those in `besides`; empty is equal to empty.
    """
    by = [name for name in parameters_in(table) if name not in besides]
    groups = table.groupby(by, sort=False, dropna=False)
    return groups.ngroup().to_numpy(dtype=int), groups.size().reset_index()[by]


def _kind(work: np.ndarray, base_work: np.ndarray, devices: pd.Series, alike: np.ndarray) -> pd.Series:
    """Kind of scaling of configurations that do not state it, by the work of their steps over the baseline's.

    Of those that are `alike` but for their devices: `strong` where it stays the same, `weak` where it grows with the
    devices, else `unknown`.
    """
    ratio = pd.Series(work / base_work)[(devices > 1).to_numpy()]
    several = devices[devices > 1]
    kinds = pd.Series("unknown", index=devices.index)
    for kind, expected in (("strong", 1.0), ("weak", several)):
        fits_it = pd.Series(np.isclose(ratio, expected, rtol=SAME_WORK), index=several.index)
        of_group = fits_it.groupby(alike[several.index]).all()
        kinds[[bool(of_group.get(group, False)) for group in alike]] = kind
    return kinds


def _completed(measures: pd.DataFrame, of: np.ndarray, count: int) -> list[np.ndarray]:
    """Rows of the completed runs of each of `count` configurations; `of` has the number of each row's."""
    completed = (measures["outcome"] == "completed").to_numpy(dtype=bool)
    return [np.flatnonzero(completed & (of == number)) for number in range(count)]


def _samples(measures: pd.DataFrame, value: str, runs: Sequence[np.ndarray]) -> list[dict[int, float]]:
    """What is known of a value by repeat, of each configuration by its runs."""
    repeats, numbers = measures["repeat"].tolist(), _numbers(measures[value]).to_numpy()
    return [{repeats[run]: numbers[run] for run in own if np.isfinite(numbers[run])} for own in runs]


def _numbers(column: pd.Series) -> pd.Series:
    """Give a column as floating-point numbers, not a number where it is empty."""
    return pd.Series(column.astype("Float64").to_numpy(dtype=float, na_value=np.nan), index=column.index)


def _means(value: str, samples: Sequence[Mapping[int, float]]) -> list[Interval]:
    """Means of the samples of a value; those of shares stay within 0 and 1."""
    is_share = units_of(value) is PERCENT
    pool = Pool(samples, logs=not is_share and all(number > 0 for own in samples for number in own.values()))
    found = [pool.mean(index) for index in range(len(samples))]
    if not is_share or not all(0 <= number <= 1 for own in samples for number in own.values()):
        return found
    return [each.map(lambda end: min(1.0, max(0.0, end))) for each in found]


def columns_of(value: str, intervals: Sequence[Interval]) -> dict[str, np.ndarray]:
    """Columns of a value and its bounds, a row per interval, empty where there is none."""
    rows = [list(each.columns(value).values()) for each in intervals]
    return {f"{value}{end}": np.array([row[at] for row in rows], dtype=float) for at, end in enumerate(ENDS)}
