"""Means and ratios of configurations that were measured together, with confidence intervals.

Each configuration is measured a few times; its values are a *sample*. Two or three values are too few to estimate how
much they scatter, so a pool estimates that from all its samples.

The model
---------
A *block* is a repeat of a group of runs in which every configuration ran once. What disturbs the machine at that time
is common to all of them. The value y of configuration i in block j is the product of three factors, so its logarithm is
a sum:

    log y_ij  =  m_i (the configuration)  +  b_j (the block)  +  e_ij (noise)

The effects b_j have the variance B in all blocks, the noise of configuration i has the variance V_i.

The estimates
-------------
Each is a mean of logarithms, or a difference of two; its exponential is a geometric mean, or a ratio of two.

    estimate                                      its squared standard error
    ------------------------------------------    -------------------------------------------
    mean of n values                              (scatter over repeats, V_i + B together) / n
    ratio of i to k, paired: in the c ≥ 2         V_i / c  +  V_k / c
        blocks that both have
    ratio of i to k, unpaired: of the means       V_i / n_i  +  V_k / n_k  +  w B
        of n_i and of n_k values

Paired, the effects of blocks cancel. Unpaired they do as far as the same blocks are on both sides: their weight w is
the sum over blocks of (a_ij − a_kj)², where a_ij is 1 / n_i if configuration i ran in block j, else 0. Without a common
block w = 1 / n_i + 1 / n_k; with all blocks common w = 0.

The interval is the estimate ± t × standard error, where t is Student's critical value. Its degrees of freedom are
Satterthwaite's: a sum of independent parts P, each estimated with f degrees of freedom, has (Σ P)² / Σ (P² / f) of
them, at most all that the pool has.

The variances
-------------
- V_i: the squares of what the values of i leave without their mean and the effects of their blocks, over the degrees of
  freedom of these residuals. Each V_i is then drawn towards those of the other configurations: see `variances`.
- B: from the estimated effects of all blocks, see `blocks`. It has few degrees of freedom, however many configurations
  ran in each block: one less than the blocks of a group.
- If noise and block effects cannot be told apart, since no block has several configurations or samples have no blocks,
  the scatter over repeats, which contains both, takes the place of V_i, and w B is left out.

Repeats that are equal to the last digit, as those of a coarse clock, are no evidence that nothing scatters: they are
left out of the variances, and their configuration gets the scatter of the others. If there are no others, there is no
interval.

The best of several is chosen by the same values that it is then compared by: see `selection`. Where all are equal and
scatter alike, the best beats another in at most 5% of families.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from multicard.stats.interval import LEVEL, Interval
from multicard.stats.samples import Blocks, Sample, UsableSample, geometric_mean, numbers_of, shared_blocks, usable
from multicard.stats.scatter import ROUNDING, Scatter, SquaredError, block_weight
from multicard.stats.selection import with_range_p_value
from multicard.stats.student import critical_value, two_sided_p_value


class _Sides(NamedTuple):
    """The logarithms that a ratio compares."""

    logs: np.ndarray
    base_logs: np.ndarray
    block_weight: float  # w of the module's model; 0 if the sides are paired
    counts: str | None  # numbers of repeats in words, where some have no partner


class Pool:
    """Samples of configurations that were measured together.

    Each has a key, by which estimates refer to it: its index, where samples are given as a sequence.

    >>> pool = Pool({"one": {1: 1.0, 2: 1.1}, "two": {1: 2.0, 2: 2.2}, "four": {1: 3.0, 2: 3.31}})
    >>> double = pool.ratio("two", "one")
    >>> round(double.value, 6), double.repeats
    (2.0, 2)
    """

    def __init__(
        self, samples: Mapping[Any, Sample] | Sequence[Sample], logs: bool = True, exact: bool = False
    ) -> None:
        """Take samples by block, or without blocks.

        A sample without numbers, or with one that has no logarithm, has no estimates and does not count for others.

        Parameters
        ----------
        samples
            By their keys, or in a sequence.
        logs
            Whether the model is that of logarithms. If not, it is that of the values themselves, for `mean` alone.
        exact
            Whether equal repeats show that nothing scatters, as of bytes, which are counted.
        """
        self._has_logs = logs
        self._is_exact = exact
        by_key = samples if isinstance(samples, Mapping) else dict(enumerate(samples))
        self._samples = {key: usable(sample, logs) for key, sample in by_key.items()}
        usable_samples = {key: sample for key, sample in self._samples.items() if sample is not None}
        self._scatter = Scatter(usable_samples, exact)

    def mean(self, key: Hashable, against: float = 1.0, level: float = LEVEL) -> Interval | None:
        """Return the geometric mean of a sample, without `logs` the arithmetic one; None where there is none.

        A single value has no bounds. The p-value is that of a mean of `against`.

        Alone, the mean of 1, 2 and 4 has Student's interval: the logarithms are 0, 1 and 2 times log 2, of which the
        standard deviation is log 2, and the critical value of two degrees of freedom is 4.303.

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
        if np.ptp(sample.scaled) > 0:
            return mean
        # Equal values keep their digits, which the exponential of the logarithm may not have.
        return mean.map(lambda end: first if math.isclose(end, first, rel_tol=ROUNDING) else end)

    def ratio(self, key: Hashable, base: Hashable, against: float = 1.0, single: bool = False) -> Interval | None:
        """Return the geometric mean of the ratios of a sample to another, paired by the blocks that both have.

        None where one of them has no geometric mean. With fewer than two such blocks it is the ratio of the geometric
        means. The p-value is that of a ratio of `against`. A single value has the scatter of the others; where both
        sides have one, there are bounds only with `single`.

        Alone, two paired samples have the interval of Student's paired test. These ratios are 2 times 0.9, 1 and 1/0.9:
        their logarithms have the standard deviation log(1 / 0.9), and two degrees of freedom.

        >>> ratio = Pool([{1: 1.8, 2: 4.0, 3: 6 / 0.9}, {1: 1.0, 2: 2.0, 3: 3.0}]).ratio(0, 1)
        >>> round(ratio.value, 6), round(ratio.high, 3), round(2 * (1 / 0.9) ** (4.303 / math.sqrt(3)), 3)
        (2.0, 2.598, 2.598)
        """
        numerator, denominator = self._samples[key], self._samples[base]
        if numerator is None or denominator is None:
            return None
        sides = _sides(numerator, denominator)
        difference = float(sides.logs.mean() - sides.base_logs.mean())
        repeats = min(len(sides.logs), len(sides.base_logs))
        if numerator.count == denominator.count == 1 and not single:
            return self._without_bounds(difference, repeats)
        counts = {key: len(sides.logs), base: len(sides.base_logs)}
        error = self._scatter.error(counts, sides.block_weight)
        ratio = self._interval(difference, error, repeats, against)
        return replace(ratio, counts=ratio.counts or sides.counts)

    def against_best(
        self, best: Hashable, others: Sequence[Hashable], among: int | None = None
    ) -> list[Interval | None]:
        """Return the ratios of `others` to the best of `among` samples, by default of these.

        P-values allow for the values of the samples having chosen which is the best.
        """
        ratios = [self.ratio(key, best) for key in others]
        tested = [ratio for ratio in ratios if ratio is not None and ratio.p_value is not None]
        # The best is one of them, too.
        count = among or len(tested) + 1
        return [ratio and with_range_p_value(ratio, count) for ratio in ratios]

    def _interval(
        self, estimate: float, error: SquaredError | None, repeats: int, against: float, level: float = LEVEL
    ) -> Interval:
        """Return an estimate with its bounds and p-value, on the scale of the values.

        `error` is None where nothing shows the scatter. Without bounds, repeats that are equal are named as the reason.
        """
        if error is None or not self._shows_scatter(error, estimate):
            are_equal = f"{repeats}, equal to the last digit" if repeats > 1 else None
            return self._without_bounds(estimate, repeats, are_equal)
        half_width = critical_value(error.freedom, level) * error.standard_error
        hypothesis = math.log(against) if self._has_logs else against
        interval = Interval(
            value=estimate,
            low=estimate - half_width,
            high=estimate + half_width,
            repeats=repeats,
            coverage=level,
            p_value=_p_value(estimate - hypothesis, error),
            freedom=error.freedom,
        )
        return interval.map(self._on_scale_of_values)

    def _shows_scatter(self, error: SquaredError, estimate: float) -> bool:
        """Return whether an error is more than that of rounding, or need not be since values are exact."""
        rounding_error = ROUNDING * max(1.0, abs(estimate))
        return self._is_exact or error.standard_error > rounding_error

    def _without_bounds(self, estimate: float, repeats: int, counts: str | None = None) -> Interval:
        return Interval(self._on_scale_of_values(estimate), None, None, repeats, counts=counts)

    def _on_scale_of_values(self, estimate: float) -> float:
        """Return the exponential of a mean of logarithms; infinity if that is too large for a number."""
        if not self._has_logs:
            return estimate
        with np.errstate(over="ignore"):
            return float(np.exp(estimate))


def ratio_of(values: Sample, base: Sample, against: float = 1.0) -> Interval | None:
    """Return the ratio of two samples alone: paired by blocks by Student's test, else by Welch's.

    >>> ratio = ratio_of({1: 6.0, 2: 8.0, 3: 10.0}, {1: 2.0, 2: 4.0, 3: 2.5})
    >>> round(ratio.value, 6), ratio.repeats, ratio.coverage  # the cube root of 3 × 2 × 4
    (2.884499, 3, 0.95)
    """
    return Pool([values, base]).ratio(0, 1, against)


def geometric_mean_interval(values: Sample) -> Interval:
    """Return the geometric mean of a sample alone, with its interval.

    Raises `ValueError` without values, or where one is not above zero.
    """
    mean = Pool([values]).mean(0)
    if mean is None:
        raise ValueError(f"expected values above zero, found {values!r}")
    return mean


def pooled(
    samples: Sequence[Blocks], logs: bool = True, against: float = 1.0, level: float = LEVEL, exact: bool = False
) -> Interval | None:
    """Return the geometric mean of several samples as one number, without `logs` the arithmetic one.

    Per block the samples are averaged, and the interval is that over blocks, so it holds whatever samples of a block
    have in common. It is about these samples, not about others. None without a block that all have. (Geometric means of
    ratios: Philip Fleming and John Wallace, CACM 29(3), 1986.)

    >>> round(pooled([{1: 2.0, 2: 2.0, 3: 9.0}, {1: 8.0, 2: 8.0}]).value, 6)
    4.0
    """
    means: dict[Hashable, float | None] = {}
    for block in shared_blocks(samples):
        values = [sample[block] for sample in samples]
        means[block] = geometric_mean(values) if logs else fmean(numbers_of(values))
    return Pool([means], logs, exact).mean(0, against, level)


def _sides(numerator: UsableSample, denominator: UsableSample) -> _Sides:
    """Return two samples paired by the blocks that both have; whole, if fewer than two blocks are common."""
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
        )
    return _Sides(
        logs=numerator.scaled,
        base_logs=denominator.scaled,
        block_weight=block_weight(numerator, denominator),
        counts=f"{numerator.count} and {denominator.count}" if fewest < most else None,
    )


def _p_value(difference: float, error: SquaredError) -> float:
    """Return the two-sided p-value of a difference from a hypothesis; differences by rounding count as none."""
    if abs(difference) <= ROUNDING:
        return 1.0
    # Exact values that differ and do not scatter leave nothing to chance.
    if error.standard_error == 0:
        return 0.0
    return two_sided_p_value(difference / error.standard_error, error.freedom)
