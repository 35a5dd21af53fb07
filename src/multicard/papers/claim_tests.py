"""Kinds of tests of claims: which runs a test of each kind is about, and how it compares them."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import pandas as pd

from multicard.answers.scaling.speedup import speedups_of
from multicard.core.grouping import grouped
from multicard.core.units import number, percent
from multicard.papers.compared_numbers import ComparedNumber, means_by_block, one_per_job
from multicard.papers.conditions import Where, fits, fitting
from multicard.results.configuration import OBSERVATION, Configuration
from multicard.results.results import Results
from multicard.stats.samples import ratio_by_block

# If more of a step is spent waiting for data, the loader sets the pace, not what a test compares.
MAX_DATA_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class ClaimTest(ABC):
    """A test of a claim: the runs that it is about, and the limits of its number. Base class of all kinds of tests.

    Attributes
    ----------
    is_share
        True if the number is a share of a whole, False if it is a ratio. Ratios are averaged as logarithms.
    statement
        A sentence that says what the test shows if it is confirmed.
    where
        The condition that the compared configurations must fit.
    excludes_data_waits
        True if configurations do not count whose mean share of a step spent waiting for data is above `MAX_DATA_SHARE`.
    above, below
        The test is confirmed if the number is above the one limit and below the other. One of them may be infinite.
    """

    is_share: ClassVar[bool] = False

    statement: str
    where: Where
    excludes_data_waits: bool = False
    above: float = -math.inf
    below: float = math.inf

    @property
    def is_timed(self) -> bool:
        """True if the number depends on times, so that runs with doubtful times do not count.

        A number that does not depend on times is counted or computed in the same way in each repeat. Equal repeats then
        show that it does not scatter (`exact` of `stats.pool.Pool`).
        """
        return True

    @abstractmethod
    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return the comparisons that `configurations` make. Those without the needed numbers make none.

        `results`: all measurements, also those of configurations that do not count.
        """

    def in_words(self, value: float) -> str:
        """Return the number of the test as text: a share in percent, a ratio as it is."""
        return f"{number(100 * value)}%" if self.is_share else number(value)

    def exclusion_reason(self, configuration: Configuration) -> str:
        """Return why the runs of a configuration do not show what the test is about; empty if they do."""
        data_shares = configuration.values("data_share")
        if not self.excludes_data_waits or not data_shares:
            return ""
        mean_share = sum(data_shares) / len(data_shares)
        is_exceeded = mean_share > MAX_DATA_SHARE
        return f"the loader sets the pace (data share above {percent(MAX_DATA_SHARE)})" if is_exceeded else ""


@dataclass(frozen=True, kw_only=True)
class Compared(ClaimTest):
    """The ratio of a measure of one configuration to the same measure of another.

    The one fits `variant`, the other `baseline`. All parameters that neither names are equal, except those in
    `may_differ`.
    """

    measure: str
    variant: Where
    baseline: Where
    may_differ: tuple[str, ...] = ()

    @property
    def is_timed(self) -> bool:
        """True if the measure is a time, a rate or an energy, by the unit at the end of its name."""
        return self.measure.endswith(("_s", "_j"))

    @property
    def differing(self) -> tuple[str, ...]:
        """The parameters in which the two configurations may differ."""
        return (*self.variant, *self.baseline, *self.may_differ)

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each pair of configurations."""
        candidates = fitting(configurations, self.where)
        groups = grouped(candidates, lambda configuration: configuration.rest(self.differing))
        pairs = []
        for group in groups.values():
            variants = fitting(group, self.variant)
            baselines = fitting(group, self.baseline)
            for variant, baseline in product(variants, baselines):
                ratios = ratio_by_block(variant.by_repeat(self.measure), baseline.by_repeat(self.measure))
                if ratios:
                    pairs.append(ComparedNumber(ratios, (variant, baseline)))
        return one_per_job(pairs)


@dataclass(frozen=True, kw_only=True)
class Trend(Compared):
    """The ratio of `Compared` on the most devices, divided by the same ratio on the fewest.

    `variant` and `baseline` fit one value each, so that a series has one pair on each number of devices.
    """

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each pair of configurations that ran on several numbers of devices."""
        ignored = ("devices", *self.differing, *OBSERVATION)
        pairs = super().comparisons(configurations, results)
        series = grouped(pairs, lambda pair: pair.sides[0].rest(ignored))
        trends = []
        for pairs_of_series in series.values():
            pair_by_devices = {pair.sides[0]["devices"]: pair for pair in pairs_of_series}
            if len(pair_by_devices) == 1:
                continue
            on_fewest = pair_by_devices[min(pair_by_devices)]
            on_most = pair_by_devices[max(pair_by_devices)]
            ratios = ratio_by_block(on_most.by_block, on_fewest.by_block)
            if ratios:
                trends.append(ComparedNumber(ratios, on_fewest.sides + on_most.sides))
        return trends


@dataclass(frozen=True, kw_only=True)
class Efficiency(ClaimTest):
    """Speed-up per device. The baseline is one device under the strategy `single` if that ran, else the same strategy.

    A configuration counts only if it was also measured with each of `strategies` in place of its own. So tests of
    several strategies compare the same configurations.
    """

    strategies: tuple[str, ...] = ()

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each configuration on several devices that has a speed-up."""
        measured = {
            (configuration["strategy"], _key_without_strategy(configuration))
            for configuration in results.configurations()
            if configuration.completed
        }
        comparisons = []
        for speedup in _speedups(configurations, self.where):
            scaled = speedup.sides[0]
            key = _key_without_strategy(scaled)
            if all((strategy, key) in measured for strategy in self.strategies):
                device_count = scaled["devices"]
                per_device = {block: ratio / device_count for block, ratio in speedup.by_block.items()}
                comparisons.append(speedup._replace(by_block=per_device))
        return one_per_job(comparisons, 1)


@dataclass(frozen=True, kw_only=True)
class RelativeScaling(ClaimTest):
    """Mean speed-up of the configurations that fit `where`, divided by that of those that fit `than`."""

    than: Where

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each number of devices on each machine with each set of versions."""
        bases_by_setting = _speedups_by_setting(configurations, self.than)
        comparisons = []
        for setting, compared in _speedups_by_setting(configurations, self.where).items():
            bases = bases_by_setting.get(setting, [])
            ratios = ratio_by_block(means_by_block(compared), means_by_block(bases))
            if ratios:
                sides = tuple(side for speedup in (*compared, *bases) for side in speedup.sides)
                comparisons.append(ComparedNumber(ratios, sides))
        return comparisons


@dataclass(frozen=True, kw_only=True)
class ApiTimeShare(ClaimTest):
    """The share of the time in CUDA calls that is spent in functions whose names match `functions`."""

    is_share: ClassVar[bool] = True

    functions: re.Pattern[str]

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each configuration whose calls were recorded and took time."""
        return _shares(fitting(configurations, self.where), results.table_by_run("cuda_api"), self._share)

    def _share(self, rows: pd.DataFrame) -> float | None:
        # Rows of backtraces repeat calls of other rows.
        calls = rows[rows["api"] != "backtrace"]
        has_function = [bool(self.functions.search(str(name))) for name in calls["function"]]
        total_s = calls["total_s"].sum()
        total_of_functions_s = calls["total_s"][has_function].sum()
        return float(total_of_functions_s / total_s) if total_s > 0 else None


@dataclass(frozen=True, kw_only=True)
class AccuracyReached(ClaimTest):
    """The highest test accuracy in the first `epochs` epochs."""

    is_share: ClassVar[bool] = True

    epochs: int

    @property
    def is_timed(self) -> bool:
        """False: an accuracy does not depend on times."""
        return False

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each configuration whose accuracy was recorded in these epochs."""
        return _shares(fitting(configurations, self.where), results.table_by_run("epochs"), self._highest_accuracy)

    def _highest_accuracy(self, rows: pd.DataFrame) -> float | None:
        highest = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(highest) if pd.notna(highest) else None


def _shares(
    configurations: Sequence[Configuration],
    rows_by_run: Mapping[str, pd.DataFrame],
    share_of: Callable[[pd.DataFrame], float | None],
) -> list[ComparedNumber]:
    """Return a comparison for each configuration of which a run shows a share.

    `share_of` returns the share that the rows of a run show; None if they show none.
    """
    comparisons = []
    for configuration in configurations:
        shares = {}
        for run in configuration.completed:
            share = share_of(rows_by_run[run.run]) if run.run in rows_by_run else None
            if share is not None:
                shares[run.repeat] = share
        if shares:
            comparisons.append(ComparedNumber(shares, (configuration,)))
    return one_per_job(comparisons)


def _speedups(configurations: Sequence[Configuration], where: Where) -> list[ComparedNumber]:
    """Return the speed-up of each fitting configuration on several devices. Its second side is the baseline."""
    return [
        ComparedNumber(speedup.by_repeat, (speedup.configuration, speedup.baseline))
        for speedup in speedups_of(configurations)
        if speedup.baseline is not None
        and speedup.configuration["devices"] > 1
        and fits(speedup.configuration, where)
        and speedup.by_repeat
    ]


def _speedups_by_setting(
    configurations: Sequence[Configuration], where: Where
) -> Mapping[Hashable, Sequence[ComparedNumber]]:
    """Return the speed-ups of the configurations that fit `where`, by number of devices, machine and versions."""

    def setting(speedup: ComparedNumber) -> Hashable:
        scaled = speedup.sides[0]
        return scaled["devices"], scaled.provenance.machine, scaled.provenance.versions

    return grouped(one_per_job(_speedups(configurations, where), 1), setting)


def _key_without_strategy(configuration: Configuration) -> Hashable:
    """Return a key that only the strategy, and how runs are observed, do not change."""
    return configuration.rest(["strategy", *OBSERVATION])
