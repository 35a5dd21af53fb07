"""Corrections for testing several hypotheses together, by Holm's method.

A family is a set of tests that are shown together. With the correction, the probability that any test of a family shows
a difference that does not exist is at most 5% (Sture Holm, Scandinavian Journal of Statistics 6, 1979).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from multicard.stats.interval import LEVEL, Interval

Ratio = TypeVar("Ratio", Interval, Interval | None)


class _Step(NamedTuple):
    """A test of a family. Holm's method takes the tests by rising p-value."""

    p_value: float
    position: int  # index of the test in the family
    remaining: int  # number of tests that are not taken before this one, this one included


def holm_adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values of a family of tests, adjusted for their number.

    An adjusted p-value of at most 0.05 shows a difference. A test without p-value keeps None, and is not counted.

    >>> holm_adjusted([0.01, 0.04, None, 0.03])  # 3 × 0.01, then 2 × 0.03, then 1 × 0.04, raised to the one before
    [0.03, 0.06, None, 0.06]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    previous = 0.0
    for step in _steps(p_values):
        bonferroni = min(1.0, step.remaining * step.p_value)
        # A test must not show a difference if a test with a smaller p-value shows none.
        previous = max(previous, bonferroni)
        adjusted[step.position] = previous
    return adjusted


def holm_levels(p_values: Sequence[float | None]) -> list[float]:
    """Return for each test of a family the level of the interval that decides as Holm's method does.

    An interval of this level excludes the hypothesis of its test exactly if Holm's method rejects the hypothesis.

    Of m tests with p-values, the test with the k-th smallest has the level 1 − 0.05 / (m − k + 1). From the first test
    on whose hypothesis is not rejected at its level, all tests have the level of that test. A test without a p-value
    has the level 0.95.

    In the example, 0.001 is rejected at 1 − 0.05 / 3. Then 0.03 is not rejected at 1 − 0.05 / 2, so 0.2 has the same
    level:

    >>> [round(level, 4) for level in holm_levels([0.001, 0.2, None, 0.03])]
    [0.9833, 0.975, 0.95, 0.975]
    """
    levels = [LEVEL] * len(p_values)
    # The highest p-value at which a hypothesis is rejected.
    error = 1 - LEVEL
    is_rejecting = True
    for step in _steps(p_values):
        if is_rejecting:
            error = (1 - LEVEL) / step.remaining
            is_rejecting = step.p_value <= error
        levels[step.position] = 1 - error
    return levels


def corrected(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return ratios that are shown together, with their p-values adjusted by `holm_adjusted`. Bounds stay as they are.

    >>> one, other = (Interval(1.1, 1.02, 1.18, 3, p_value=p_value) for p_value in (0.03, 0.2))
    >>> [ratio and ratio.p_value for ratio in corrected([one, None, other])]
    [0.06, None, 0.2]
    """
    p_values = holm_adjusted([None if ratio is None else ratio.p_value for ratio in ratios])
    return [
        ratio if ratio is None else replace(ratio, p_value=p_value)
        for ratio, p_value in zip(ratios, p_values, strict=True)
    ]


def _steps(p_values: Sequence[float | None]) -> list[_Step]:
    """Return the tests that have a p-value, in the order in which Holm's method takes them.

    >>> [(step.position, step.remaining) for step in _steps([0.04, None, 0.01])]
    [(2, 2), (0, 1)]
    """
    ordered = sorted((p_value, position) for position, p_value in enumerate(p_values) if p_value is not None)
    return [
        _Step(p_value, position, remaining=len(ordered) - earlier)
        for earlier, (p_value, position) in enumerate(ordered)
    ]
