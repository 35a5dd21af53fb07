"""Speed-ups of configurations over a baseline on one device, how they scale, and when a speed-up is implausible."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from multicard.answers.pools import pool_of_rates
from multicard.answers.scaling.work import is_same_work, work_of_step
from multicard.core.grouping import grouped
from multicard.core.units import percent
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval
from multicard.stats.samples import geometric_mean, ratio_by_block

# Columns of rates (work over time), each for another unit of work.
RATES = ("throughput_samples_per_s", "tokens_per_s", "steps_per_s")
# If a speed-up per device is below the first or above the second, both sides may not have done the same work.
LEAST_EFFICIENCY, MOST_EFFICIENCY = 0.02, 1.1
# Parameters that say on how many devices a configuration runs.
SCALE = ("devices", "nodes")
# Parameters in which a configuration may differ from its baseline.
BASELINE_DIFFERS = ("strategy", *SCALE)


@dataclass(frozen=True)
class Speedup:
    """A configuration with its baseline on one device, and its speed-up over that. Made by `speedups_of`."""

    configuration: Configuration
    # None if none was measured.
    baseline: Configuration | None
    # Geometric mean of the speed-up over blocks of repeats; None without a baseline, or without rates.
    mean: Interval | None
    # How this configuration and those that differ from it at most in `BASELINE_DIFFERS` scale: `strong`, `weak` or
    # `unknown`.
    scaling: str
    # True if these were measured on several numbers of devices. Otherwise efficiency has no meaning.
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
        """Speed-up in each repeat that both the configuration and its baseline have."""
        return ratio_by_block(self.rates, self.baseline_rates)

    @property
    def baseline_words(self) -> str | None:
        """Name of the baseline; None without one."""
        program = self.configuration.program
        return program.baseline_words(self.baseline[program.method]) if self.baseline else None

    def of_repeat(self, repeat: int) -> float | None:
        """Return the speed-up of one repeat; None if it is not known.

        The rate is divided by that of the baseline's repeat with the same number. If there is no such repeat, it is
        divided by the geometric mean of the baseline's repeats.
        """
        rate = self.rates.get(repeat)
        baseline_rate = self.baseline_rates.get(repeat, geometric_mean(self.baseline_rates))
        return rate / baseline_rate if rate is not None and baseline_rate else None

    def efficiency(self, speedup: Interval | None) -> Interval | None:
        """Return a speed-up divided by the number of devices; None if it is not known, or has no meaning."""
        if speedup is None or not self.has_efficiency:
            return None
        devices = self.configuration["devices"]
        return speedup.map(lambda times: times / devices)


def implausible(speedup: float, devices: int) -> str | None:
    """Return in words that a speed-up is in doubt, if it is far above or below ideal scaling; else None.

    The speed-up of one device is never in doubt.

    `superlinear_caveat` says more about one that is above ideal.

    >>> implausible(5.0, 4)
    '125% efficient: more than ideal'
    >>> implausible(0.05, 4)
    '1.2% efficient: almost nothing of ideal; check that both sides do the same work'
    >>> implausible(4.3, 4), implausible(0.1, 4)
    (None, None)
    """
    efficiency = speedup / devices
    if devices == 1 or LEAST_EFFICIENCY <= efficiency <= MOST_EFFICIENCY:
        return None
    if efficiency > 1:
        return f"{percent(efficiency)} efficient: more than ideal"
    return f"{percent(efficiency)} efficient: almost nothing of ideal; check that both sides do the same work"


class _Pair(NamedTuple):
    """A configuration with its baseline; None if none was measured."""

    configuration: Configuration
    baseline: Configuration | None


def speedups_of(configurations: Sequence[Configuration], beside: Sequence[Configuration] = ()) -> list[Speedup]:
    """Return the speed-up of each configuration, in their order.

    A configuration and its baseline differ at most in `BASELINE_DIFFERS`. Intervals follow from the scatter of all
    given configurations of the same scenario, those of `beside` included, which are no baselines.
    """
    pool = pool_of_rates(configurations, beside)
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
    """Return each configuration with its baseline. `family`: configurations that differ at most in `BASELINE_DIFFERS`.

    Of the configurations that were measured on one device, the baseline has the method that the program prefers, such
    as the strategy `single`.
    """
    program = family[0].program
    on_one_device = {
        configuration[program.method]: configuration
        for configuration in family
        if _is_measured(configuration) and configuration["devices"] == 1
    }
    pairs = []
    for configuration in family:
        methods = program.comparison.baselines(configuration[program.method])
        baselines = [on_one_device[method] for method in methods if method in on_one_device]
        pairs.append(_Pair(configuration, baselines[0] if baselines else None))
    return pairs


class _WorkGrowth(NamedTuple):
    """The work of a step on several `devices`: `times` as much as the work of a step on one device."""

    times: float
    devices: int


def _scaling(pairs: Sequence[_Pair]) -> str:
    """Return how configurations that differ in their devices scale: `strong`, `weak` or `unknown`.

    The parameters of some programs state it. For the others it is found by comparing the work of a step with that of
    the baseline: `strong` if it is the same on all numbers of devices, `weak` if it grows in proportion to the devices.
    It is `unknown` if neither holds, if the work of some configuration on several devices or of its baseline is not
    known, or if no run completed on several devices.
    """
    first = pairs[0].configuration
    stated = first.program.comparison.scaling(first.parameters)
    if stated is not None:
        return stated
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
    """Return by run id how the configuration of the run scales: `strong`, `weak` or `unknown`.

    It is compared with other configurations of the same scenario. If a run is in several scenarios, the first decides.
    """
    scaling: dict[str, str] = {}
    for scenario in results.by_scenario():
        for speedup in speedups_of(scenario.on_any_machine().configurations()):
            for run in speedup.configuration.runs:
                scaling.setdefault(run.run, speedup.scaling)
    return scaling
