"""Means and ratios of configurations that were measured together, by the scatter that they share.

Two or three repeats tell little of their own scatter, those of all configurations together tell it well. Logarithms of
values are taken to be a configuration, a block (repeats that ran in turn share their round) and scatter. The variance
of a configuration is its own, drawn towards that of all as far as they agree (moderated t): wholly where variances
differ no more than those of equal scatter do, hardly at all where one configuration scatters as no other does. Degrees
of freedom are Satterthwaite's, at most those of all configurations together.

The best of several is chosen by the same values that it is then compared by. Comparisons with it are tested by the
studentized range, which holds whichever two are compared: where all are equal and scatter alike, the best beats
another in at most 5% of families. Where one of four or eight with two to five repeats scatters 3 to 10 times as much as
the rest, it does in 7 to 11%; with ten repeats in 3% (simulated).

Gordon Smyth, Statistical Applications in Genetics and Molecular Biology 3(1), 2004. John Tukey, The Problem of Multiple
Comparisons, 1953; Paul Games and John Howell, Journal of Educational Statistics 1(2), 1976.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np
from scipy.special import digamma, polygamma, stdtr, stdtrit

from multicard.analysis.statistics import (
    LEVEL,
    Blocks,
    Interval,
    Values,
    geometric_mean,
    is_number,
    known,
    shared_blocks,
)

ROUNDING = 1e-9  # how far from the expected ratio one of equals may come out
DOUBT = 0.5  # standard errors by which variances may differ more than they seem to
FLOOR = 1e-5  # of the mean variance: one of equal values tells as much as that it is as small


@dataclass(frozen=True)
class _Scatter:
    """Variances of the logarithms by configuration, their degrees of freedom, and those of all together."""

    variances: np.ndarray
    freedom: np.ndarray
    of_all: float


class Pool:
    """Samples of configurations that were measured together.

    >>> pool = Pool([{1: 1.0, 2: 1.1}, {1: 2.0, 2: 2.2}, {1: 3.0, 2: 3.31}])
    >>> found = pool.ratio(1, 0)
    >>> round(found.value, 6), found.repeats
    (2.0, 2)
    """

    def __init__(self, samples: Sequence[Blocks | Values], logs: bool = True) -> None:
        """Take samples by block, or without blocks.

        Those with a value that has no logarithm take no part; without `logs` values are taken as they are, for `mean`.
        """
        self._of_logs = logs
        self._samples = [each if isinstance(each, Mapping) else list(each) for each in samples]
        self._numbers = [known(each) for each in self._samples]
        self._logs = [
            None if not len(each) or (logs and each.min() <= 0) else np.log(each) if logs else each
            for each in self._numbers
        ]

    def mean(self, index: int, against: float = 1.0, level: float = LEVEL) -> Interval:
        """Geometric mean of a sample, without `logs` the arithmetic one; without bounds for a single value.

        The p-value is that of a mean of `against`.
        """
        logs, count = self._logs[index], len(self._numbers[index])
        if logs is None:
            return Interval(None, None, None, count)
        first = float(self._numbers[index][0])
        if count == 1:
            return Interval(first, None, None, 1)
        freedom = min(self._total.freedom[index], self._freedom_of_blocks)
        error = math.sqrt(self._total.variances[index] / count)
        found = _interval(float(logs.mean()), error, freedom, count, against, level, self._of_logs)
        if not self._of_logs or np.ptp(logs) > 0:
            return found
        # Equal values keep their digits.
        return found.map(lambda end: first if math.isclose(end, first, rel_tol=ROUNDING) else end)

    def ratio(self, index: int, base: int, against: float = 1.0, single: bool = False) -> Interval:
        """Geometric mean of the ratios of a sample to another, paired by the blocks that both have.

        The p-value is that of a ratio of `against`. With `single` the scatter of others gives a single value an
        interval.
        """
        return self._compared(index, base, against, single)[0]

    def against_best(self, best: int, others: Sequence[int], among: int | None = None) -> list[Interval]:
        """Ratios to the best of `among` samples, by default of these, which their own values chose: see the module."""
        compared = [self._compared(each, best) for each in others]
        count = among or 1 + sum(ratio.p_value is not None for ratio, _ in compared)
        return [replace(ratio, p_value=_of_range(ratio.p_value, freedom, count)) for ratio, freedom in compared]

    def _compared(self, index: int, base: int, against: float = 1.0, single: bool = False) -> tuple[Interval, float]:
        """A ratio, and its degrees of freedom."""
        samples, logs = ([of[index], of[base]] for of in (self._samples, self._logs))
        fewest = min(len(self._numbers[index]), len(self._numbers[base]))
        if any(each is None for each in logs):
            return Interval(None, None, None, fewest), math.nan
        blocks = shared_blocks(samples)
        paired = len(blocks) >= 2 or (len(blocks) == 1 and fewest == 1)
        if paired:
            logs = [np.log([float(each[block]) for block in blocks]) for each in samples]
        estimate = float(logs[0].mean() - logs[1].mean())
        repeats = min(map(len, logs))
        scatter = self._within if paired else self._total
        if (repeats == 1 and not single) or scatter.of_all <= 0:
            return Interval(math.exp(estimate), None, None, repeats), math.nan
        parts = np.array([scatter.variances[i] / len(own) for i, own in zip((index, base), logs, strict=True)])
        freedom = scatter.of_all
        if parts.sum() > 0:
            own = scatter.freedom[[index, base]]
            freedom = min(freedom, float(parts.sum() ** 2 / (parts**2 / own).sum()))
        error = math.sqrt(parts.sum())
        return _interval(estimate, error, freedom, repeats, against), freedom

    @cached_property
    def _observed(self) -> list[int]:
        return [index for index, logs in enumerate(self._logs) if logs is not None]

    @cached_property
    def _residuals(self) -> tuple[list[np.ndarray], int]:
        """Deviations from configuration and block, and the degrees of freedom that blocks take."""
        centred = [self._logs[i] - self._logs[i].mean() for i in self._observed]
        names = sorted({block for i in self._observed for block in self._samples[i]}, key=repr)
        place = {name: number for number, name in enumerate(names)}
        columns = []
        for i in self._observed:
            own = [place[block] for block, value in self._samples[i].items() if is_number(value)]
            columns.append(np.eye(len(names))[own] - np.eye(len(names))[own].mean(axis=0))
        matrix, values = np.vstack(columns), np.concatenate(centred)
        effects, _, rank, _ = np.linalg.lstsq(matrix, values, rcond=1e-9)
        left = values - matrix @ effects
        return np.split(left, np.cumsum([len(each) for each in centred])[:-1]), int(rank)

    @cached_property
    def _within(self) -> _Scatter:
        """Scatter within blocks."""
        residuals, taken = self._residuals
        return self._moderated(residuals, taken)

    @cached_property
    def _total(self) -> _Scatter:
        """Scatter over repeats, blocks included."""
        return self._moderated([self._logs[i] - self._logs[i].mean() for i in self._observed], 0)

    def _moderated(self, residuals: Sequence[np.ndarray], taken: int) -> _Scatter:
        counts = np.array([len(each) - 1 for each in residuals], dtype=float)
        free = counts.sum() - taken
        own = counts * free / max(counts.sum(), 1)
        squares = np.array([(each**2).sum() for each in residuals])
        variances, freedom = np.full(len(self._logs), math.nan), np.full(len(self._logs), math.nan)
        if free > 0:
            prior, of_prior = _prior(squares, own)
            if math.isinf(of_prior):
                variances[self._observed], freedom[self._observed] = prior, free
            else:
                # A single value has what the others have.
                alone = own + of_prior == 0
                freedom[self._observed] = np.where(alone, free, own + of_prior)
                variances[self._observed] = np.where(
                    alone, prior, (of_prior * prior + squares) / np.where(alone, 1.0, own + of_prior)
                )
        return _Scatter(variances, freedom, float(free))

    @cached_property
    def _freedom_of_blocks(self) -> float:
        """Degrees of freedom of the scatter over repeats, which configurations of a block may have in common."""
        if not all(isinstance(self._samples[i], Mapping) for i in self._observed):
            return math.inf
        residuals, taken = self._residuals
        total = sum(((self._logs[i] - self._logs[i].mean()) ** 2).sum() for i in self._observed)
        free = sum(len(each) - 1 for each in residuals)
        left, own = sum((each**2).sum() for each in residuals), free - taken
        if own <= 0 or taken == 0 or total == 0:
            return float(free)
        # The parts of the variance that blocks and the rest have, each with its degrees of freedom. Blocks count as in
        # the sum over configurations: a few that differ little by chance would else give far too many.
        parts, freedoms = np.array([(total - left) / taken, left / free]), np.array([taken, own])
        return float(parts.sum() ** 2 / (parts**2 / freedoms).sum())


def _prior(squares: np.ndarray, freedom: np.ndarray) -> tuple[float, float]:
    """Variance that all have in common and its degrees of freedom, infinite where their own agree with it."""
    used = freedom > 0
    pooled = float(squares.sum() / freedom.sum())
    if used.sum() < 3:  # Welch's
        return pooled, 0.0
    if pooled == 0:
        return 0.0, math.inf
    from scipy.optimize import brentq  # slow to import, as is scipy.stats

    half = freedom[used] / 2
    logs = np.log(np.maximum(squares[used] / freedom[used], FLOOR * pooled)) - digamma(half) + np.log(half)
    beyond = max(0.0, float(logs.var(ddof=1) - polygamma(1, half).mean()))
    beyond += DOUBT * math.sqrt(float((polygamma(3, half) + 2 * polygamma(1, half) ** 2).mean()) / len(logs))
    half_prior = brentq(lambda x: float(polygamma(1, x)) - beyond, 1e-6, 1e9)
    return pooled, 2 * half_prior


def _of_range(p_value: float | None, freedom: float, count: int) -> float | None:
    """The p-value of a t test as that of one between any two of so many."""
    if p_value is None or p_value > 1 - LEVEL:
        return p_value
    pairs = count * (count - 1) / 2
    if pairs * p_value <= 1 - LEVEL:  # Bonferroni's bound is enough
        return pairs * p_value
    from scipy.stats import studentized_range

    statistic = -float(stdtrit(freedom, p_value / 2))
    return float(studentized_range.sf(math.sqrt(2) * statistic, count, max(freedom, 1.0)))


def _interval(
    estimate: float,
    error: float,
    freedom: float,
    repeats: int,
    against: float,
    level: float = LEVEL,
    of_log: bool = True,
) -> Interval:
    """The interval of a mean, or of what a mean is the logarithm of, by its standard error and degrees of freedom."""
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    difference = estimate - (math.log(against) if of_log else against)
    p_value = 1.0 if abs(difference) <= ROUNDING else 0.0  # a difference of rounding is none
    if error > 0 and not p_value:
        p_value = 2 * float(stdtr(freedom, -abs(difference) / error))
    found = Interval(estimate, estimate - reach, estimate + reach, repeats, level, p_value)
    with np.errstate(over="ignore"):
        return found.map(lambda end: float(np.exp(end))) if of_log else found


def ratio_of(values: Blocks | Values, base: Blocks | Values, against: float = 1.0) -> Interval:
    """Ratio of two samples alone: paired by blocks Student's, else Welch's with Satterthwaite's degrees of freedom.

    >>> found = ratio_of({1: 6.0, 2: 8.0, 3: 10.0}, {1: 2.0, 2: 4.0, 3: 2.5})
    >>> round(found.value, 6), found.repeats, found.coverage  # the cube root of 3 × 2 × 4
    (2.884499, 3, 0.95)
    """
    return Pool([values, base]).ratio(0, 1, against)


def mean_of_logs(values: Blocks | Values) -> Interval:
    """Geometric mean of a sample alone, with its interval."""
    return Pool([values]).mean(0)


def pooled(samples: Sequence[Blocks], logs: bool = True, against: float = 1.0, level: float = LEVEL) -> Interval:
    """Mean of several samples, without `logs` the arithmetic one: one number, however many configurations there are.

    Per block the samples are averaged, and the interval is that over blocks, so it holds whatever samples of a block
    have in common. It is about these samples, not about others. Nothing is known without a block that all have.
    (Geometric means of ratios: Philip Fleming and John Wallace, CACM 29(3), 1986.)

    >>> round(pooled([{1: 2.0, 2: 2.0, 3: 9.0}, {1: 8.0, 2: 8.0}]).value, 6)
    4.0
    """
    mean = geometric_mean if logs else fmean
    blocks = shared_blocks(samples)
    return Pool([{block: mean([each[block] for each in samples]) for block in blocks}], logs).mean(0, against, level)
