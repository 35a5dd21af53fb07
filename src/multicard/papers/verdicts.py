"""One pooled number per test of a claim, with an interval, and what follows from it.

A claim makes few statements, and a matrix many comparisons for each. Judged one by one, some of many would be decided
by chance, the more the larger the matrix. So all comparisons of a test are pooled within each block of repeats, and the
blocks, which are independent of each other, give the interval: more comparisons make it narrower.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from multicard.analysis.evidence import MeasuredRun
from multicard.analysis.statistics import LEVEL, Interval, mean_of, pooled_ratio
from multicard.papers.limits import Comparison, Quantity, Test, same_blocks

NOT_MEASURED = "not measured here"
Verdict = Literal["confirmed", "refuted", "not decided", "not judged", "not measured here"]


@dataclass(frozen=True)
class Pooled:
    """The pooled number of a test.

    Attributes
    ----------
    found
        The number with its interval, whose repeats are blocks; its p-value is of the limit that decides.
    level
        Coverage of the interval: 95%, and more where several tests are judged together.
    single
        The comparisons that are pooled, each with its number over the blocks.
    blocks
        The blocks that are pooled: the same of each comparison.
    """

    found: Interval
    level: float
    single: list[tuple[Comparison, Interval]]
    blocks: frozenset[int]

    @property
    def runs(self) -> list[MeasuredRun]:
        """The runs behind the number, each once."""
        every = {run.run: run for comparison, _ in self.single for run in comparison.runs(self.blocks)}
        return list(every.values())


def judge_together(tests: Sequence[tuple[Test, Sequence[Comparison]]]) -> list[tuple[Verdict, Pooled | None]]:
    """Judge some tests, each by its comparisons.

    A test is confirmed where its interval lies wholly inside the limits and refuted where it lies wholly outside. The
    levels of the intervals are those of Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979), so
    that one or more tests are decided wrongly with a probability of at most 5%.
    """
    series = [same_blocks([each.by_block for each in comparisons]) for _, comparisons in tests]
    p_values = [_found(test, each).p_value if each else None for (test, _), each in zip(tests, series, strict=True)]
    judged: list[tuple[Verdict, Pooled | None]] = []
    for (test, comparisons), kept, level in zip(tests, series, holm_levels(p_values), strict=True):
        if not kept:
            judged.append((NOT_MEASURED, None))
            continue
        blocks = frozenset(kept[0])
        pooled_ones = [each for each in comparisons if blocks <= each.by_block.keys()]
        single = [(each, pooled_interval([own], test.quantity)) for each, own in zip(pooled_ones, kept, strict=True)]
        found = _found(test, kept, level)
        judged.append((_verdict(test, found), Pooled(found, level, single, blocks)))
    return judged


def holm_levels(p_values: Sequence[float | None]) -> list[float]:
    """Level of the interval of each of some tests, by Holm's procedure.

    Of m tests with p-values, the one with the k-th smallest has the level 1 − 0.05 / (m − k + 1); from the first that
    this does not decide, all have the same. So an interval of its level excludes the limit exactly where Holm's
    procedure rejects it.

    >>> [round(level, 4) for level in holm_levels([0.001, 0.2, None, 0.03])]
    [0.9833, 0.975, 0.95, 0.975]
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    levels = [LEVEL] * len(p_values)
    error, decided = 1 - LEVEL, True
    for rank, (p, index) in enumerate(known):
        if decided:
            error = (1 - LEVEL) / (len(known) - rank)
            decided = p <= error
        levels[index] = 1 - error
    return levels


def pooled_interval(
    series: Sequence[Mapping[int, float]], quantity: Quantity, against: float = 1.0, level: float = LEVEL
) -> Interval:
    """Mean of series that have the same blocks, of ratios the geometric one; of a share, bounds are from 0 to 1."""
    if quantity == "ratio":
        return pooled_ratio([(each, dict.fromkeys(each, 1.0)) for each in series], against, level)
    means = {block: float(np.mean([each[block] for each in series])) for block in series[0]}
    found = mean_of(means, against, level)
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _found(test: Test, series: Sequence[Mapping[int, float]], level: float = LEVEL) -> Interval:
    """The pooled number; its p-value is of the limit that it must exclude to be decided."""
    value = pooled_interval(series, test.quantity).value
    limits = [limit for limit in (test.above, test.below) if limit is not None]
    violated = [limit for limit in limits if (value < limit if limit == test.above else value > limit)]
    # Inside the limits all of them must be excluded, outside the one that is violated.
    found = [pooled_interval(series, test.quantity, limit, level) for limit in violated or limits]
    return max(found, key=lambda each: each.p_value or 0.0)


def _verdict(test: Test, found: Interval) -> Verdict:
    if found.low is None or found.high is None:
        return "not decided"
    above = test.above if test.above is not None else -math.inf
    below = test.below if test.below is not None else math.inf
    if found.high < above or found.low > below:
        return "refuted"
    return "confirmed" if found.low > above and found.high < below else "not decided"
