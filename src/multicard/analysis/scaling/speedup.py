"""Speed-ups of configurations over a baseline on one device, how they scale, and when a speed-up is implausible."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from multicard.analysis.scaling.work import is_same_work, work_of_step
from multicard.core.grouping import grouped
from multicard.core.units import percent
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool
from multicard.stats.samples import geometric_mean, ratio_by_block

# Work over time, by what counts it.
RATES = ("throughput_samples_per_s", "tokens_per_s", "steps_per_s")
# Shares of ideal scaling outside of which both sides may not have done the same work.
LEAST_EFFICIENCY, MOST_EFFICIENCY = 0.02, 1.1
# Parameters in which a configuration may differ from its baseline.
BASELINE_DIFFERS = ("strategy", "devices", "nodes")


@dataclass(frozen=True)
class Speedup:
    """A configuration beside its baseline on one device."""

    configuration: Configuration
    # None if none completed.
    baseline: Configuration | None
    # Geometric mean over the blocks of repeats; None without a baseline, or without rates.
    mean: Interval | None
    # How configurations that differ in their devices scale: `strong`, `weak` or `unknown`.
    scaling: str
    # True if they ran on several numbers of devices; else efficiency has no meaning.
    has_efficiency: bool

    @cached_property
    def rates(self) -> dict[int, float]:
        """Work per second by repeat."""
        return self.configuration.by_repeat(self.configuration.rate)

    @cached_property
    def baseline_rates(self) -> dict[int, float]:
        """Work per second of the baseline by repeat; empty without one."""
        return self.baseline.by_repeat(self.configuration.rate) if self.baseline else {}

    @property
    def by_repeat(self) -> dict[int, float]:
        """Speed-up in each repeat that both have."""
        return ratio_by_block(self.rates, self.baseline_rates)

    @property
    def baseline_words(self) -> str | None:
        """Name of the baseline; None without one."""
        workload = self.configuration.workload
        return workload.baseline_words(self.baseline[workload.method]) if self.baseline else None

    def of_repeat(self, repeat: int) -> float | None:
        """Return the speed-up of one repeat; None if it is not known.

        It is over the repeat of the baseline with the same number, or over the baseline's mean if that has none.
        """
        rate = self.rates.get(repeat)
        baseline_rate = self.baseline_rates.get(repeat, geometric_mean(self.baseline_rates))
        return rate / baseline_rate if rate is not None and baseline_rate else None

    def efficiency(self, speedup: Interval | None) -> Interval | None:
        """Return a speed-up per device; None where it has no meaning."""
        if speedup is None or not self.has_efficiency:
            return None
        devices = self.configuration["devices"]
        return speedup.map(lambda times: times / devices)


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


class _Pair(NamedTuple):
    """A configuration with its baseline."""

    configuration: Configuration
    baseline: Configuration | None


def speedups_of(configurations: Sequence[Configuration]) -> list[Speedup]:
    """Return the speed-up of each configuration, in their order.

    A baseline differs at most in `BASELINE_DIFFERS`. Intervals are by the scatter of all that are given, such as those
    of a scenario, or of a job on one kind of machine.
    """
    pool = Pool({configuration.key: configuration.blocks(configuration.rate) for configuration in configurations})
    families = grouped(configurations, lambda configuration: configuration.rest(BASELINE_DIFFERS))
    speedups: dict[Hashable, Speedup] = {}
    for family in families.values():
        pairs = _pairs(family)
        scaling = _scaling(pairs)
        device_counts = {configuration["devices"] for configuration in family if _is_measured(configuration)}
        for configuration, baseline in pairs:
            speedups[configuration.key] = Speedup(
                configuration=configuration,
                baseline=baseline,
                mean=None if baseline is None else pool.ratio(configuration.key, baseline.key),
                scaling=scaling,
                has_efficiency=len(device_counts) > 1,
            )
    return [speedups[configuration.key] for configuration in configurations]


def _is_measured(configuration: Configuration) -> bool:
    return bool(configuration.blocks(configuration.rate))


def _pairs(family: Sequence[Configuration]) -> list[_Pair]:
    """Find the baseline of each of some configurations that differ at most in `BASELINE_DIFFERS`.

    It is the one that the workload prefers, such as the strategy `single`, of those that were measured on one device.
    """
    workload = family[0].workload
    on_one_device = {
        configuration[workload.method]: configuration
        for configuration in family
        if _is_measured(configuration) and configuration["devices"] == 1
    }
    pairs = []
    for configuration in family:
        methods = workload.baselines(configuration[workload.method])
        baselines = [on_one_device[method] for method in methods if method in on_one_device]
        pairs.append(_Pair(configuration, baselines[0] if baselines else None))
    return pairs


class _WorkGrowth(NamedTuple):
    """How many times the work of a step on one device a step on several devices has."""

    times: float
    devices: int


def _scaling(pairs: Sequence[_Pair]) -> str:
    """Return how configurations that differ in their devices scale.

    Vision runs state it, and LLM runs always scale weakly. Of scripts the work of a step over the baseline's decides:
    `strong` where it stays the same, `weak` where it grows with the devices, else `unknown`.
    """
    first = pairs[0].configuration
    if not first.workload.is_user_program:
        return first["scaling"] or "weak"
    growths: list[_WorkGrowth] = []
    for configuration, baseline in pairs:
        if configuration["devices"] == 1 or not configuration.completed:
            continue
        work = work_of_step(configuration)
        baseline_work = None if baseline is None else work_of_step(baseline)
        if work is None or baseline_work is None:
            return "unknown"
        growths.append(_WorkGrowth(work / baseline_work, configuration["devices"]))
    if not growths:
        return "unknown"
    if all(is_same_work(growth.times, 1) for growth in growths):
        return "strong"
    if all(is_same_work(growth.times, growth.devices) for growth in growths):
        return "weak"
    return "unknown"


def scaling_of_runs(results: Results) -> dict[str, str]:
    """Return how the configuration of each run scales, among those of its scenario: `strong`, `weak` or `unknown`.

    Of a run in several scenarios the first one decides.
    """
    scaling: dict[str, str] = {}
    for scenario in results.by_scenario():
        for speedup in speedups_of(scenario.on_any_machine().configurations()):
            for run in speedup.configuration.runs:
                scaling.setdefault(run.run, speedup.scaling)
    return scaling
