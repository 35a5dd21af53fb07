"""Means and ratios of configurations that were measured together, with confidence intervals.

Each configuration is measured a few times. Its values are a *sample*. Two or three values are too few to estimate their
scatter, so a pool estimates the scatter of each scenario from all samples that the scenario has. Samples whose
blocks state no scenario are one scenario.

The model
---------
A *block* is a repeat in which every configuration of a group ran once. A disturbance of the machine at that time
affects all of them. The value y of configuration i in block j is the product of three factors, so its logarithm is a
sum:

    log y_ij  =  m_i (the configuration)  +  b_j (the block)  +  e_ij (noise)

The effects b_j have the variance B. The noise of configuration i has the variance V_i.

The estimates
-------------
An estimate is a mean of logarithms, or the difference of two such means. Its exponential is a geometric mean, or the
ratio of two geometric means.

    estimate                                      its squared standard error
    ------------------------------------------    -------------------------------------------
    mean of n values                              (scatter over repeats, V_i + B together) / n
    ratio of i to k, paired: in the c ≥ 2         V_i / c  +  V_k / c
        blocks that both have
    ratio of i to k, unpaired: of the means       V_i / n_i  +  V_k / n_k  +  w B
        of n_i and of n_k values

In a paired ratio the effects of blocks cancel. In an unpaired ratio they cancel in part, if some blocks are on both
sides. The weight w of what remains is the sum over blocks of (a_ij − a_kj)², where a_ij is 1 / n_i if configuration i
ran in block j, else 0. If no block is common, w = 1 / n_i + 1 / n_k. If all blocks are common, w = 0.

The interval is the estimate ± t × standard error, where t is Student's critical value. The degrees of freedom of t are
Satterthwaite's: the squared standard error is a sum of independent parts P, each known with f degrees of freedom, and
has (Σ P)² / Σ (P² / f) degrees of freedom. They are not more than the pool has in all.

The variances
-------------
- V_i: the residuals of i are its values minus their mean and minus the effects of their blocks. V_i is the sum of their
  squares, divided by their degrees of freedom. Each V_i is then drawn towards those of the other configurations: see
  `variances`.
- B: from the estimated effects of the blocks of a scenario, see `blocks`. It has as many degrees of freedom as the
  scenario has blocks, minus 1. The number of configurations in a block does not matter.
- Each scenario has its own V_i and its own B, so that a number has the same interval in the figure of its scenario and
  among all scenarios of an experiment. If several scenarios have a configuration, or both sides of a ratio, the first
  of them counts. The ratio of two configurations without a common scenario has the parts of both means, V_i / n_i of
  the one scenario and V_k / n_k of the other; unpaired, also the B / n of both.
- Noise and block effects cannot be separated if no block has several configurations, or if samples have no blocks. An
  unpaired ratio then uses the scatter over repeats, which contains both, in place of V_i, and w B is left out.

Repeats may be equal to the last digit because a clock is coarse, so equal repeats do not show that there is no scatter.
They are left out of the variances, and their configuration gets the scatter of the other configurations. If there are
no others, there is no interval.

If repeats are added until the results are clear, blocks state how often the results are looked at. Intervals are then
wider, and p-values larger, so that they hold at whichever look the last repeat was added; see `looks`.

The best of several configurations is chosen by the same values by which it is then compared with the others; see
`selection`. If all are equally good and have equal scatter, the probability that the best is shown to be better than
any other is at most 5%.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from multicard.stats.interval import LEVEL, Interval
from multicard.stats.looks import level_of_look, p_value_of_look
from multicard.stats.samples import (
    Blocks,
    Sample,
    UsableSample,
    geometric_mean,
    looks_of,
    numbers_of,
    shared_blocks,
    usable,
)
from multicard.stats.scatter import ROUNDING, ScatterByScenario, SquaredError, block_weight_of
from multicard.stats.selection import with_range_p_value
from multicard.stats.student import critical_value, two_sided_p_value


class _Sides(NamedTuple):
    """The values of the two samples of a ratio, as logarithms."""

    logs: np.ndarray
    base_logs: np.ndarray
    block_weight: float  # w of the model; 0 if the sides are paired
    counts: str | None  # numbers of repeats in words, such as "3 of 5", if some repeats have no partner; else None
    is_paired: bool  # True if values at the same position are of the same block, of two or more


class Pool:
    """Samples of configurations that were measured together.

    Estimates refer to a sample by its key. The key is the index of the sample if samples are given as a sequence.

    >>> pool = Pool({"one": {1: 1.0, 2: 1.1}, "two": {1: 2.0, 2: 2.2}, "four": {1: 3.0, 2: 3.31}})
    >>> double = pool.ratio("two", "one")
    >>> round(double.value, 6), double.repeats
    (2.0, 2)
    """

    def __init__(
        self,
        samples: Mapping[Any, Sample] | Sequence[Sample],
        logs: bool = True,
        exact: bool = False,
        looks: int = 1,
        beside: Mapping[Any, Sample] | None = None,
    ) -> None:
        """Take samples by block, or without blocks.

        A sample without finite numbers has no estimates (None) and does not affect those of others. With `logs` the
        same holds for a sample with a number that is zero or less.

        Parameters
        ----------
        samples
            A mapping from keys to samples, or a sequence of samples.
        logs
            True if the model is that of logarithms. If False, it is that of the values themselves. Then only `mean` may
            be used, because `ratio` needs logarithms.
        exact
            True if equal repeats show that there is no scatter: for bytes, which are counted and not timed.
        looks
            How often the results are looked at, to decide whether repeats are added; see `stats.looks`. The larger
            number counts if blocks of the samples state one, too.
        beside
            Samples of further configurations by their keys. They have no estimates here, but show how much repeats of
            their scenarios scatter. So an interval does not depend on which configurations of a scenario are asked for.
        """
        self._has_logs = logs
        self._is_exact = exact
        by_key = samples if isinstance(samples, Mapping) else dict(enumerate(samples))
        self._samples = {key: usable(sample, logs) for key, sample in by_key.items()}
        usable_samples = {key: sample for key, sample in self._samples.items() if sample is not None}
        others = {key: usable(sample, logs) for key, sample in (beside or {}).items() if key not in by_key}
        usable_others = {key: sample for key, sample in others.items() if sample is not None}
        self._scatter = ScatterByScenario(usable_samples, exact, usable_others)
        self._looks = max(looks, *map(looks_of, usable_samples.values()), 1)

    @property
    def scatter(self) -> float | None:
        """Standard deviation of the noise of one value, over all samples; None if no sample shows it.

        With logarithms, 0.01 stands for 1%. In the example, both configurations have the same effects of blocks, and
        residuals of ±0.01 in each of two blocks with one degree of freedom together:

        >>> pool = Pool([{1: math.exp(0.01), 2: 1.0}, {1: 1.0, 2: math.exp(0.01)}])
        >>> round(pool.scatter, 4)  # the differences are ±0.01, so their variance is 2 × 0.01², twice that of a value
        0.01
        """
        return self._scatter.typical

    def mean(self, key: Hashable, against: float = 1.0, level: float = LEVEL) -> Interval | None:
        """Return the geometric mean of a sample, or its arithmetic mean if the pool was made with `logs=False`.

        None if the sample has no estimates. The mean of a single value has no bounds. The p-value tests the hypothesis
        that the mean is `against`. `level`: coverage of the interval.

        In a pool with one sample, the interval is Student's. The logarithms of 1, 2 and 4 are 0, 1 and 2 times log 2.
        Their standard deviation is log 2, and the critical value for two degrees of freedom is 4.303:

        >>> mean = Pool([[1.0, 2.0, 4.0]]).mean(0)
        >>> round(mean.value, 6), round(mean.high, 2), round(2 * 2 ** (4.303 / math.sqrt(3)), 2)
        (2.0, 11.19, 11.19)
        """
        sample = self._samples[key]
        if sample is None:
            return None
        first = float(sample.numbers[0])
        if sample.count == 1:
            return Interval(first, None, None, 1)
        estimate = float(sample.scaled.mean())
        mean = self._interval(estimate, self._scatter.error_of_mean(key), sample.count, against, level)
        mean = replace(mean, measured=self._range(sample.scaled))
        if np.ptp(sample.scaled) > 0:
            return mean
        # All values are equal. The exponential of a logarithm may differ from them by rounding, so it is replaced.
        return mean.map(lambda end: first if math.isclose(end, first, rel_tol=ROUNDING) else end)

    def ratio(self, key: Hashable, base: Hashable, against: float = 1.0, single: bool = False) -> Interval | None:
        """Return the ratio of the sample `key` to the sample `base`; None if one of them has no estimates.

        If two or more blocks are common to both, the ratio is the geometric mean of the ratios in these blocks.
        Otherwise it is the ratio of the two geometric means. The p-value tests the hypothesis that the ratio is
        `against`.

        The scatter of a sample with a single value is taken from the other samples of the pool. If both samples have a
        single value, there are bounds only if `single` is True. The ratio of a sample to itself is 1, without bounds.

        Raises `ValueError` if the pool was made with `logs=False`.

        In a pool of two paired samples, the interval is that of Student's paired test. Here the ratios are 1.8, 2 and
        2 / 0.9. Their logarithms have the standard deviation log(1 / 0.9), and two degrees of freedom:

        >>> ratio = Pool([{1: 1.8, 2: 4.0, 3: 6 / 0.9}, {1: 1.0, 2: 2.0, 3: 3.0}]).ratio(0, 1)
        >>> round(ratio.value, 6), round(ratio.high, 3), round(2 * (1 / 0.9) ** (4.303 / math.sqrt(3)), 3)
        (2.0, 2.598, 2.598)
        """
        numerator, denominator = self._samples[key], self._samples[base]
        if not self._has_logs:
            raise ValueError("a pool without logarithms has no ratios")
        if numerator is None or denominator is None:
            return None
        if key == base:
            return Interval(1.0, None, None, numerator.count)
        sides = _sides(numerator, denominator)
        difference = float(sides.logs.mean() - sides.base_logs.mean())
        repeats = min(len(sides.logs), len(sides.base_logs))
        if numerator.count == denominator.count == 1 and not single:
            return self._without_bounds(difference, repeats)
        counts = {key: len(sides.logs), base: len(sides.base_logs)}
        error = self._scatter.error_of_difference(counts, sides.block_weight)
        ratio = self._interval(difference, error, repeats, against)
        measured = self._range(sides.logs - sides.base_logs) if sides.is_paired else None
        return replace(ratio, counts=ratio.counts or sides.counts, measured=measured)

    def against_best(
        self, best: Hashable, others: Sequence[Hashable], among: int | None = None
    ) -> list[Interval | None]:
        """Return the ratio of each of `others` to `best`, the best of `among` samples; None where a ratio is unknown.

        The p-values are larger than those of `ratio`, because `best` was chosen by the values that are compared.

        `among`: number of samples from which it was chosen; by default the number of ratios with a p-value, plus 1.
        """
        ratios = [self.ratio(key, best) for key in others]
        tested = [ratio for ratio in ratios if ratio is not None and ratio.p_value is not None]
        # The best is one of the samples, too.
        count = among or len(tested) + 1
        return [ratio and with_range_p_value(ratio, count) for ratio in ratios]

    def _range(self, estimates: np.ndarray) -> tuple[float, float]:
        """Return the least and the largest of several estimates, on the scale of the values."""
        return self._on_scale_of_values(float(estimates.min())), self._on_scale_of_values(float(estimates.max()))

    def _interval(
        self, estimate: float, error: SquaredError | None, repeats: int, against: float, level: float = LEVEL
    ) -> Interval:
        """Return an estimate with its bounds and p-value, on the scale of the values.

        `error` is None if no sample shows the scatter. The result then has no bounds and, if there are several repeats,
        says in `counts` that they are equal.
        """
        if error is None or not self._shows_scatter(error, estimate):
            are_equal = f"{repeats}, equal to the last digit" if repeats > 1 else None
            return self._without_bounds(estimate, repeats, are_equal)
        half_width = critical_value(error.freedom, level_of_look(self._looks, level)) * error.standard_error
        hypothesis = math.log(against) if self._has_logs else against
        interval = Interval(
            value=estimate,
            low=estimate - half_width,
            high=estimate + half_width,
            repeats=repeats,
            coverage=level,
            p_value=p_value_of_look(_p_value(estimate - hypothesis, error), self._looks),
            freedom=error.freedom,
        )
        return interval.map(self._on_scale_of_values)

    def _shows_scatter(self, error: SquaredError, estimate: float) -> bool:
        """Return whether an error is larger than rounding makes it; always True if the values are exact."""
        rounding_error = ROUNDING * max(1.0, abs(estimate))
        return self._is_exact or error.standard_error > rounding_error

    def _without_bounds(self, estimate: float, repeats: int, counts: str | None = None) -> Interval:
        return Interval(self._on_scale_of_values(estimate), None, None, repeats, counts=counts)

    def _on_scale_of_values(self, estimate: float) -> float:
        """Return the exponential of an estimate, infinity if it is too large; without logarithms the estimate."""
        if not self._has_logs:
            return estimate
        with np.errstate(over="ignore"):
            return float(np.exp(estimate))


def ratio_of(values: Sample, base: Sample, against: float = 1.0) -> Interval | None:
    """Return the ratio of two samples, without other samples that show the scatter.

    Its interval is that of Student's paired test if two or more blocks are common to both, else that of Welch's test.

    >>> ratio = ratio_of({1: 6.0, 2: 8.0, 3: 10.0}, {1: 2.0, 2: 4.0, 3: 2.5})
    >>> round(ratio.value, 6), ratio.repeats, ratio.coverage  # the cube root of 3 × 2 × 4
    (2.884499, 3, 0.95)
    """
    return Pool([values, base]).ratio(0, 1, against)


def geometric_mean_interval(values: Sample) -> Interval:
    """Return the geometric mean of a sample and its interval, without other samples that show the scatter.

    Raises `ValueError` if there are no values, or if one is not above zero.
    """
    mean = Pool([values]).mean(0)
    if mean is None:
        raise ValueError(f"expected values above zero, found {values!r}")
    return mean


def pooled(
    samples: Sequence[Blocks],
    logs: bool = True,
    against: float = 1.0,
    level: float = LEVEL,
    exact: bool = False,
    looks: int = 1,
) -> Interval | None:
    """Return the mean over several samples: geometric, or arithmetic if `logs` is False. None if no block is common.

    In each block that all samples have, their values are averaged. The estimate and its interval are those of these
    averages, so values of the same block need not be independent. With `logs`, a block with a value that is zero or
    less is left out. The interval holds for these samples, not for further ones. (Geometric means of ratios: Philip
    Fleming and John Wallace, CACM 29(3), 1986.)

    `against`, `level`: see `Pool.mean`. `exact`, `looks`: see `Pool`.

    In the example, the blocks 1 and 2 are common, and the geometric mean of 2 and 8 is 4 in both:

    >>> round(pooled([{1: 2.0, 2: 2.0, 3: 9.0}, {1: 8.0, 2: 8.0}]).value, 6)
    4.0
    """
    means: dict[Hashable, float | None] = {}
    for block in shared_blocks(samples):
        values = [sample[block] for sample in samples]
        means[block] = geometric_mean(values) if logs else fmean(numbers_of(values))
    return Pool([means], logs, exact, looks).mean(0, against, level)


def _sides(numerator: UsableSample, denominator: UsableSample) -> _Sides:
    """Return two samples paired by their common blocks, if there are two or more.

    They are also paired if each has a single value, both in the same block. Otherwise all values are returned.
    """
    base_blocks = set(denominator.blocks or ())
    common = [block for block in numerator.blocks or () if block in base_blocks]
    fewest, most = sorted((numerator.count, denominator.count))
    are_single_values_of_a_block = len(common) == most == 1
    if len(common) >= 2 or are_single_values_of_a_block:
        return _Sides(
            logs=numerator.in_blocks(common),
            base_logs=denominator.in_blocks(common),
            block_weight=0.0,
            counts=f"{len(common)} of {most}" if most > len(common) else None,
            is_paired=len(common) >= 2,
        )
    return _Sides(
        logs=numerator.scaled,
        base_logs=denominator.scaled,
        block_weight=block_weight_of(numerator, denominator),
        counts=f"{numerator.count} and {denominator.count}" if fewest < most else None,
        is_paired=False,
    )


def _p_value(difference: float, error: SquaredError) -> float:
    """Return the two-sided p-value of a difference from a hypothesis; 1 if the difference may come from rounding."""
    if abs(difference) <= ROUNDING:
        return 1.0
    # Exact values that differ from the hypothesis and have no scatter cannot differ by chance.
    if error.standard_error == 0:
        return 0.0
    return two_sided_p_value(difference / error.standard_error, error.freedom)
