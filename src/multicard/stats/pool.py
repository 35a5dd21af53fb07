"""Means and ratios of configurations that were measured together, by the scatter that they share.

The model: the logarithm of a value is that of its configuration, plus the effect of its block, plus noise. A block is a
repeat of a group of runs, in which every configuration ran once. Its effect is common to all of them; the variance of
such effects is B.

- Two configurations with common blocks are compared within these, where block effects cancel.
- Without two of them the geometric means are compared. Over r blocks a mean has a block effect of variance B/r,
  which cancels as far as blocks are common to both sides. B is estimated by the effects of all blocks, which have few
  degrees of freedom, however many configurations ran in each: one less than the blocks of a group.
- Where noise and blocks cannot be told apart, since no block has several configurations, or samples have no blocks, the
  scatter over repeats stands for both.

Variances of configurations are drawn towards each other (`scatter`). Degrees of freedom are Satterthwaite's, at most
those of all configurations together. Repeats that are equal to the last digit are no evidence that nothing scatters,
as those of a coarse clock: their configuration has the scatter of the others, and no interval without such.

The best of several is chosen by the same values that it is then compared by: see `selection`. Where all are equal and
scatter alike, the best beats another in at most 5% of families.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np
from scipy.special import stdtr, stdtrit

from multicard.stats.interval import LEVEL, Interval
from multicard.stats.samples import Blocks, Values, geometric_mean, is_number, numbers_of, shared_blocks
from multicard.stats.selection import with_range_p_value
from multicard.stats.variances import Variances, moderated

ROUNDING = 1e-9  # how far from the expected ratio one of equals may come out


@dataclass(frozen=True)
class _Blocks:
    """What is left of values without their configurations' means and their blocks' effects."""

    residuals: list[np.ndarray]  # by configuration that takes part
    freedom: np.ndarray  # degrees of freedom of these
    variance: float  # of the effects of blocks, with the noise that their estimates have
    of_variance: float  # degrees of freedom of that
    configurations: float  # how many configurations a block has in the mean: noise / this is in the variance

    @property
    def are_told_from_noise(self) -> bool:
        """Whether both blocks and noise have degrees of freedom."""
        return self.of_variance > 0 and bool((self.freedom > 1e-6).any())


class Pool:
    """Samples of configurations that were measured together.

    >>> pool = Pool([{1: 1.0, 2: 1.1}, {1: 2.0, 2: 2.2}, {1: 3.0, 2: 3.31}])
    >>> found = pool.ratio(1, 0)
    >>> round(found.value, 6), found.repeats
    (2.0, 2)
    """

    def __init__(self, samples: Sequence[Blocks | Values], logs: bool = True, exact: bool = False) -> None:
        """Take samples by block, or without blocks.

        Those with a value that has no logarithm take no part; without `logs` values are taken as they are, for `mean`.
        `exact`: equal repeats show that nothing scatters, as of bytes, which are counted.
        """
        self._of_logs, self._exact = logs, exact
        self._samples = [each if isinstance(each, Mapping) else list(each) for each in samples]
        self._numbers = [numbers_of(each) for each in self._samples]
        self._logs = [
            None if not len(each) or (logs and each.min() <= 0) else np.log(each) if logs else each
            for each in self._numbers
        ]

    def mean(self, index: int, against: float = 1.0, level: float = LEVEL) -> Interval | None:
        """Return the geometric mean of a sample, without `logs` the arithmetic one; None where there is none.

        A single value has no bounds. The p-value is that of a mean of `against`.
        """
        logs, count = self._logs[index], len(self._numbers[index])
        if logs is None:
            return None
        first = float(self._numbers[index][0])
        if count == 1:
            return Interval(first, None, None, 1)
        # Blocks and noise of one configuration need not be told apart, but for how much the other configurations tell
        # of them. Its own values alone tell as much as they are, whatever the blocks are.
        _, of_parts = self._error({index: count}, self._unshared([index]))
        freedom = min(float(self._total.freedom[index]), max(count - 1.0, of_parts))
        found = self._interval(float(logs.mean()), self._total.variances[index] / count, freedom, count, against, level)
        if np.ptp(logs) > 0:
            return found
        # Equal values keep their digits.
        return found.map(lambda end: first if math.isclose(end, first, rel_tol=ROUNDING) else end)

    def ratio(self, index: int, base: int, against: float = 1.0, single: bool = False) -> Interval | None:
        """Return the geometric mean of the ratios of a sample to another, paired by the blocks that both have.

        None where one of them has no geometric mean. With fewer than two such blocks it is the ratio of the geometric
        means. The p-value is that of a ratio of `against`. A single value has the scatter of the others; where both
        sides have one, only with `single`.
        """
        sides = [index, base]
        fewest, most = sorted(len(self._numbers[side]) for side in sides)
        if any(self._logs[side] is None for side in sides):
            return None
        blocks = shared_blocks([self._samples[side] for side in sides])
        is_paired = len(blocks) >= 2 or (len(blocks) == 1 and most == 1)
        if is_paired:
            logs = [np.log([float(self._samples[side][block]) for block in blocks]) for side in sides]
            unshared, counts = 0.0, None if most == len(blocks) else f"{len(blocks)} of {most}"
        else:
            logs = [self._logs[side] for side in sides]
            unshared, counts = self._unshared(sides), None if fewest == most else f"{len(logs[0])} and {len(logs[1])}"
        estimate, repeats = float(logs[0].mean() - logs[1].mean()), min(map(len, logs))
        if most == 1 and not single:
            return Interval(math.exp(estimate), None, None, repeats)
        variance, freedom = self._error({side: len(own) for side, own in zip(sides, logs, strict=True)}, unshared)
        found = self._interval(estimate, variance, freedom, repeats, against)
        return replace(found, counts=found.counts or counts)

    def against_best(self, best: int, others: Sequence[int], among: int | None = None) -> list[Interval | None]:
        """Ratios to the best of `among` samples, by default of these, which their own values chose."""
        ratios = [self.ratio(each, best) for each in others]
        count = among or 1 + sum(ratio is not None and ratio.p_value is not None for ratio in ratios)
        return [ratio and with_range_p_value(ratio, count) for ratio in ratios]

    def _interval(
        self, estimate: float, variance: float, freedom: float, repeats: int, against: float, level: float = LEVEL
    ) -> Interval:
        """The interval of a mean, or of what a mean is the logarithm of, by its variance and degrees of freedom."""
        error = math.sqrt(variance) if variance > 0 else 0.0
        if not variance >= 0 or (error <= ROUNDING * max(1.0, abs(estimate)) and not self._exact):
            value = math.exp(estimate) if self._of_logs else estimate
            are_equal = f"{repeats}, equal to the last digit" if repeats > 1 else None
            return Interval(value, None, None, repeats, counts=are_equal)
        reach = float(stdtrit(freedom, (1 + level) / 2)) * error
        difference = estimate - (math.log(against) if self._of_logs else against)
        p_value = 1.0 if abs(difference) <= ROUNDING else 0.0  # a difference of rounding is none
        if error > 0 and not p_value:
            p_value = 2 * float(stdtr(freedom, -abs(difference) / error))
        found = Interval(estimate, estimate - reach, estimate + reach, repeats, level, p_value, freedom)
        with np.errstate(over="ignore"):
            return found.map(lambda end: float(np.exp(end))) if self._of_logs else found

    def _error(self, counts: Mapping[int, int], unshared: float) -> tuple[float, float]:
        """Variance of a mean, or of a difference of means, and its degrees of freedom; not a number where unknown.

        `counts`: how many values of each configuration it has. `unshared`: see there.
        """
        blocks = self._blocks
        has_block_effects = unshared > 0 and blocks is not None and blocks.are_told_from_noise
        scatter = self._within if unshared == 0 or has_block_effects else self._total
        parts, weights, freedoms, limit = [], [], [], scatter.of_all
        if scatter.of_all > 0:
            parts = [scatter.variances[index] / count for index, count in counts.items()]
            weights, freedoms = list(parts), [scatter.freedom[index] for index in counts]
        if has_block_effects:
            noise = float(scatter.variances[self._observed].mean()) if scatter.of_all > 0 else 0.0
            parts.append(unshared * max(0.0, blocks.variance - noise / blocks.configurations))
            # The noise stays in what its degrees of freedom are weighted by: if blocks happen to differ little, they
            # still tell no more than their number.
            weights.append(unshared * blocks.variance)
            freedoms.append(blocks.of_variance)
            limit += blocks.of_variance
        if sum(weights) <= 0:
            return (0.0, limit) if self._exact and limit > 0 else (math.nan, math.nan)
        satterthwaite = sum(weights) ** 2 / sum(w**2 / df for w, df in zip(weights, freedoms, strict=True))
        return float(sum(parts)), float(min(limit, satterthwaite))

    def _unshared(self, sides: Sequence[int]) -> float:
        """Sum over blocks of the squares of their weights in a mean, or in a difference of means.

        Over r blocks it is 1/r of a mean, and of a difference 2/r without common blocks, 0 where all are common.
        """
        weights: dict[object, float] = {}
        for side, sign in zip(sides, (1, -1), strict=False):
            if not isinstance(self._samples[side], Mapping):
                return 1.0
            own = [block for block, value in self._samples[side].items() if is_number(value)]
            for block in own:
                weights[block] = weights.get(block, 0.0) + sign / len(own)
        return sum(weight**2 for weight in weights.values())

    @cached_property
    def _observed(self) -> list[int]:
        return [index for index, logs in enumerate(self._logs) if logs is not None]

    @cached_property
    def _deviations(self) -> list[np.ndarray]:
        """Deviations from the means of the configurations."""
        return [self._logs[index] - self._logs[index].mean() for index in self._observed]

    @cached_property
    def _blocks(self) -> _Blocks | None:
        """Effects of blocks by least squares; None where a sample has no blocks."""
        if not self._observed or not all(isinstance(self._samples[index], Mapping) for index in self._observed):
            return None
        own = [[name for name, value in self._samples[i].items() if is_number(value)] for i in self._observed]
        place = {name: number for number, name in enumerate(dict.fromkeys(name for names in own for name in names))}
        indicators = [np.eye(len(place))[[place[name] for name in names]] for names in own]
        design = np.vstack([each - each.mean(axis=0) for each in indicators])
        values = np.concatenate(self._deviations)
        inverse = np.linalg.pinv(design.T @ design, rcond=1e-9, hermitian=True)
        effects = inverse @ design.T @ values
        taken = round(float(np.trace(inverse @ design.T @ design)))
        leverages = np.einsum("ij,jk,ik->i", design, inverse, design)
        ends = np.cumsum([len(names) for names in own])[:-1]
        return _Blocks(
            residuals=np.split(values - design @ effects, ends),
            freedom=np.array([max(0.0, len(each) - 1 - each.sum()) for each in np.split(leverages, ends)]),
            variance=float(effects @ effects) / taken if taken else 0.0,
            of_variance=float(taken),
            configurations=taken / float(np.trace(inverse)) if taken else math.inf,
        )

    @cached_property
    def _within(self) -> Variances:
        """Scatter within blocks; that over repeats where there are no blocks."""
        if self._blocks is None:
            return self._total
        return self._moderated(self._blocks.residuals, self._blocks.freedom)

    @cached_property
    def _total(self) -> Variances:
        """Scatter over repeats, blocks included."""
        return self._moderated(self._deviations, np.array([len(each) - 1.0 for each in self._deviations]))

    def _moderated(self, residuals: Sequence[np.ndarray], freedom: np.ndarray) -> Variances:
        squares = np.array([float(each @ each) for each in residuals])
        own = np.where(freedom > 1e-6, freedom, 0.0)
        if not self._exact:
            own = np.where(squares > ROUNDING**2, own, 0.0)  # equal repeats tell nothing
        variances, freedoms = (np.full(len(self._logs), math.nan) for _ in range(2))
        scatter = moderated(squares, own)
        variances[self._observed], freedoms[self._observed] = scatter.variances, scatter.freedom
        return Variances(variances, freedoms, scatter.of_all)


def ratio_of(values: Blocks | Values, base: Blocks | Values, against: float = 1.0) -> Interval | None:
    """Return the ratio of two samples alone: paired by blocks by Student's test, else by Welch's.

    >>> found = ratio_of({1: 6.0, 2: 8.0, 3: 10.0}, {1: 2.0, 2: 4.0, 3: 2.5})
    >>> round(found.value, 6), found.repeats, found.coverage  # the cube root of 3 × 2 × 4
    (2.884499, 3, 0.95)
    """
    return Pool([values, base]).ratio(0, 1, against)


def geometric_mean_interval(values: Blocks | Values) -> Interval:
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
    have in common. It is about these samples, not about others. None without a block that all have.
    (Geometric means of ratios: Philip Fleming and John Wallace, CACM 29(3), 1986.)

    >>> round(pooled([{1: 2.0, 2: 2.0, 3: 9.0}, {1: 8.0, 2: 8.0}]).value, 6)
    4.0
    """
    mean = geometric_mean if logs else fmean
    means = {block: mean([each[block] for each in samples]) for block in shared_blocks(samples)}
    return Pool([means], logs, exact).mean(0, against, level)
