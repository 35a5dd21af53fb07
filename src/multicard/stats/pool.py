"""Means and ratios of configurations that were measured together, with intervals by the scatter that they share.

The model: the logarithm of a value is that of its configuration, plus the effect of its block, plus noise. A block is a
repeat of a group of runs, in which every configuration ran once. Its effect is common to all of them; the variance of
such effects is B.

- Two configurations with common blocks are compared within these, where block effects cancel.
- Without two common blocks the geometric means are compared. Over r blocks a mean has a block effect of variance B/r,
  which cancels as far as blocks are common to both sides. B is estimated by the effects of all blocks (`blocks`), which
  have few degrees of freedom, however many configurations ran in each: one less than the blocks of a group.
- Where noise and blocks cannot be told apart, since no block has several configurations, or samples have no blocks, the
  scatter over repeats stands for both.

Variances of configurations are drawn towards each other (`variances`). Degrees of freedom are Satterthwaite's, at most
those of all configurations together. Repeats that are equal to the last digit, as those of a coarse clock, are no
evidence that nothing scatters: their configuration has the scatter of the others, and no interval without others.

The best of several is chosen by the same values that it is then compared by: see `selection`. Where all are equal and
scatter alike, the best beats another in at most 5% of families.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from multicard.stats.blocks import BlockEffects, fit_block_effects
from multicard.stats.interval import LEVEL, Interval
from multicard.stats.samples import Blocks, Sample, geometric_mean, numbers_by_block, numbers_of, shared_blocks
from multicard.stats.selection import with_range_p_value
from multicard.stats.variances import Variances, moderated

ROUNDING = 1e-9  # a relative difference up to which numbers are equal


@dataclass(frozen=True)
class _Observed:
    """A sample as the pool uses it: its finite numbers, and on which scale means are taken."""

    numbers: np.ndarray
    by_block: dict[Hashable, float] | None  # None of a sample without blocks
    scaled: np.ndarray | None  # logarithms, or the numbers themselves; None where they have no mean


class _Estimate(NamedTuple):
    """A mean, or a difference of two means, on the scale of the pool."""

    value: float
    variance: float  # not a number where it is not known
    freedom: float  # degrees of freedom of the variance
    repeats: int


class _Error(NamedTuple):
    """The variance of an estimate, with its degrees of freedom; not numbers where nothing shows them."""

    variance: float
    freedom: float


class _VariancePart(NamedTuple):
    """One of the independent parts that the variance of an estimate is the sum of."""

    variance: float
    weight: float  # what it counts as in Satterthwaite's formula
    freedom: float


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

        A sample with a value that has no logarithm has no estimates and does not count for others. Without `logs`
        values are taken as they are, for `mean`. `exact`: equal repeats show that nothing scatters, as of bytes, which
        are counted.
        """
        self._has_logs = logs
        self._exact = exact
        by_key = samples if isinstance(samples, Mapping) else dict(enumerate(samples))
        self._samples = {key: _observed(sample, logs) for key, sample in by_key.items()}
        self._usable = [sample for sample in self._samples.values() if sample.scaled is not None]

    def mean(self, key: Hashable, against: float = 1.0, level: float = LEVEL) -> Interval | None:
        """Return the geometric mean of a sample, without `logs` the arithmetic one; None where there is none.

        A single value has no bounds. The p-value is that of a mean of `against`.
        """
        sample = self._samples[key]
        if sample.scaled is None:
            return None
        first = float(sample.numbers[0])
        count = len(sample.numbers)
        if count == 1:
            return Interval(first, None, None, 1)
        # For the variance of a single configuration, blocks and noise need not be told apart. Its degrees of freedom
        # are at least those of its own values, whatever the blocks are; the other configurations may add some.
        error = self._error({key: count}, _unshared_weight([sample]))
        position = self._position[key]
        freedom = min(float(self._total.freedom[position]), max(count - 1.0, error.freedom))
        variance = self._total.variances[position] / count
        mean = self._interval(_Estimate(float(sample.scaled.mean()), variance, freedom, count), against, level)
        if np.ptp(sample.scaled) > 0:
            return mean
        # Equal values keep their digits, which the exponential of the logarithm may not have.
        return mean.map(lambda end: first if math.isclose(end, first, rel_tol=ROUNDING) else end)

    def ratio(self, key: Hashable, base: Hashable, against: float = 1.0, single: bool = False) -> Interval | None:
        """Return the geometric mean of the ratios of a sample to another, paired by the blocks that both have.

        None where one of them has no geometric mean. With fewer than two such blocks it is the ratio of the geometric
        means. The p-value is that of a ratio of `against`. A single value has the scatter of the others; where both
        sides have one, only with `single`.
        """
        numerator, denominator = self._samples[key], self._samples[base]
        if numerator.scaled is None or denominator.scaled is None:
            return None
        fewest, most = sorted((len(numerator.numbers), len(denominator.numbers)))
        blocks = _common_blocks(numerator, denominator)
        counts = None
        if len(blocks) >= 2 or (len(blocks) == 1 and most == 1):
            logs, base_logs = _logs_in(numerator, blocks), _logs_in(denominator, blocks)
            unshared = 0.0
            if most > len(blocks):
                counts = f"{len(blocks)} of {most}"
        else:
            logs, base_logs = numerator.scaled, denominator.scaled
            unshared = _unshared_weight([numerator, denominator])
            if fewest < most:
                counts = f"{len(logs)} and {len(base_logs)}"
        difference = float(logs.mean() - base_logs.mean())
        repeats = min(len(logs), len(base_logs))
        if most == 1 and not single:
            return Interval(math.exp(difference), None, None, repeats)
        error = self._error({key: len(logs), base: len(base_logs)}, unshared)
        ratio = self._interval(_Estimate(difference, error.variance, error.freedom, repeats), against)
        return replace(ratio, counts=ratio.counts or counts)

    def against_best(
        self, best: Hashable, others: Sequence[Hashable], among: int | None = None
    ) -> list[Interval | None]:
        """Return the ratios of `others` to the best of `among` samples, by default of these.

        P-values allow for the values of the samples having chosen which is the best.
        """
        ratios = [self.ratio(key, best) for key in others]
        count = among or 1 + sum(ratio is not None and ratio.p_value is not None for ratio in ratios)
        return [ratio and with_range_p_value(ratio, count) for ratio in ratios]

    def _interval(self, estimate: _Estimate, against: float, level: float = LEVEL) -> Interval:
        """Return an estimate on the scale of the values, with its bounds and p-value."""
        value, variance, freedom, repeats = estimate
        error = math.sqrt(variance) if variance > 0 else 0.0
        shows_scatter = error > ROUNDING * max(1.0, abs(value)) or self._exact
        if math.isnan(variance) or not shows_scatter:
            are_equal = f"{repeats}, equal to the last digit" if repeats > 1 else None
            return Interval(math.exp(value) if self._has_logs else value, None, None, repeats, counts=are_equal)
        reach = float(stdtrit(freedom, (1 + level) / 2)) * error
        difference = value - (math.log(against) if self._has_logs else against)
        if abs(difference) <= ROUNDING:
            p_value = 1.0
        elif error > 0:
            p_value = 2 * float(stdtr(freedom, -abs(difference) / error))
        else:
            p_value = 0.0
        interval = Interval(value, value - reach, value + reach, repeats, level, p_value, freedom)
        with np.errstate(over="ignore"):
            return interval.map(lambda end: float(np.exp(end))) if self._has_logs else interval

    def _error(self, counts: Mapping[Hashable, int], unshared: float) -> _Error:
        """Return the error of a mean, or of a difference of means, by noise and block effects.

        `counts`: how many values of each configuration it has, by its key. `unshared`: the weight of
        block effects in it, see `_unshared_weight`.
        """
        effects = self._separable_effects if unshared > 0 else None
        noise = self._within if unshared == 0 or effects is not None else self._total
        parts: list[_VariancePart] = []
        limit = noise.total_freedom
        if noise.total_freedom > 0:
            for key, count in counts.items():
                position = self._position[key]
                own_variance = noise.variances[position] / count
                parts.append(_VariancePart(own_variance, own_variance, noise.freedom[position]))
        if effects is not None:
            parts.append(self._block_part(effects, noise, unshared))
            limit += effects.freedom
        weight = sum(part.weight for part in parts)
        if weight <= 0:
            return _Error(0.0, limit) if self._exact and limit > 0 else _Error(math.nan, math.nan)
        variance = float(sum(part.variance for part in parts))
        satterthwaite = weight**2 / sum(part.weight**2 / part.freedom for part in parts)
        return _Error(variance, float(min(limit, satterthwaite)))

    def _block_part(self, effects: BlockEffects, noise: Variances, unshared: float) -> _VariancePart:
        """Return what the effects of blocks that are not common to both sides add to the variance of an estimate."""
        mean_noise = float(noise.variances.mean()) if noise.total_freedom > 0 else 0.0
        return _VariancePart(
            variance=unshared * max(0.0, effects.variance - mean_noise / effects.configurations),
            # The noise of the estimated effects stays in the weight: blocks that happen to differ little have no more
            # degrees of freedom than others.
            weight=unshared * effects.variance,
            freedom=effects.freedom,
        )

    @cached_property
    def _position(self) -> dict[Hashable, int]:
        """Positions of the usable samples in arrays of what is known of them."""
        usable = [key for key, sample in self._samples.items() if sample.scaled is not None]
        return {key: position for position, key in enumerate(usable)}

    @cached_property
    def _deviations(self) -> list[np.ndarray]:
        """Values less their configuration's mean, of each usable sample."""
        return [sample.scaled - sample.scaled.mean() for sample in self._usable if sample.scaled is not None]

    @cached_property
    def _effects(self) -> BlockEffects | None:
        """Effects of blocks; None where a usable sample has no blocks."""
        blocks = [list(sample.by_block) for sample in self._usable if sample.by_block is not None]
        if not blocks or len(blocks) < len(self._usable):
            return None
        return fit_block_effects(blocks, self._deviations)

    @property
    def _separable_effects(self) -> BlockEffects | None:
        return self._effects if self._effects is not None and self._effects.are_separable else None

    @cached_property
    def _within(self) -> Variances:
        """Variances within blocks; those over repeats where there are no blocks."""
        if self._effects is None:
            return self._total
        return self._moderated(self._effects.residuals, self._effects.residual_freedom)

    @cached_property
    def _total(self) -> Variances:
        """Variances over repeats, block effects included."""
        return self._moderated(self._deviations, np.array([len(deviations) - 1.0 for deviations in self._deviations]))

    def _moderated(self, residuals: Sequence[np.ndarray], freedom: np.ndarray) -> Variances:
        squares = np.array([float(residual @ residual) for residual in residuals])
        counted = np.where(freedom > 1e-6, freedom, 0.0)
        if not self._exact:
            counted = np.where(squares > ROUNDING**2, counted, 0.0)  # equal repeats show nothing of the scatter
        return moderated(squares, counted)


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


def _observed(sample: Sample, logs: bool) -> _Observed:
    if isinstance(sample, Mapping):
        by_block = numbers_by_block(sample)
        numbers = np.array(list(by_block.values()))
    else:
        by_block, numbers = None, numbers_of(sample)
    if not len(numbers) or (logs and numbers.min() <= 0):
        return _Observed(numbers, by_block, None)
    return _Observed(numbers, by_block, np.log(numbers) if logs else numbers)


def _common_blocks(one: _Observed, other: _Observed) -> list[Hashable]:
    if one.by_block is None or other.by_block is None:
        return []
    return shared_blocks([one.by_block, other.by_block])


def _logs_in(sample: _Observed, blocks: Sequence[Hashable]) -> np.ndarray:
    numbers = sample.by_block or {}
    return np.log([numbers[block] for block in blocks])


def _unshared_weight(samples: Sequence[_Observed]) -> float:
    """Return the weight of the variance of block effects in a mean (one sample) or a difference of means (two).

    It is the sum over blocks of their squared weights: over r blocks 1/r of a mean, and of a difference 2/r without
    common blocks, 0 where all are common. Where a sample has no blocks it is 1, which only has to differ from 0: then
    effects of blocks are not estimated.
    """
    weights: dict[Hashable, float] = defaultdict(float)
    for sample, sign in zip(samples, (1, -1), strict=False):
        if sample.by_block is None:
            return 1.0
        for block in sample.by_block:
            weights[block] += sign / len(sample.by_block)
    return sum(weight**2 for weight in weights.values())
