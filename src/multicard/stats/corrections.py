"""Corrections for testing several hypotheses together, by Holm's method.

Sture Holm, Scandinavian Journal of Statistics 6, 1979: of a family of tests that are shown together, one or more
decides wrongly with a probability of at most 5%.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from multicard.stats.interval import LEVEL, Interval

Ratio = TypeVar("Ratio", Interval, Interval | None)


class _Step(NamedTuple):
    """A test at its turn: the method takes tests by rising p-value."""

    p_value: float
    position: int  # index of the test in the family
    remaining: int  # number of tests that have not been taken before, this one included


def holm_adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values of a family of tests, adjusted for their number; None stays, and does not count.

    Those of at most 5% show a difference.

    >>> holm_adjusted([0.01, 0.04, None, 0.03])  # 3 × 0.01, then 2 × 0.03, then 1 × 0.04, but no less than before
    [0.03, 0.06, None, 0.06]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    previous = 0.0
    for step in _steps(p_values):
        bonferroni = min(1.0, step.remaining * step.p_value)
        # A test shows nothing if one with a smaller p-value does not.
        previous = max(previous, bonferroni)
        adjusted[step.position] = previous
    return adjusted


def holm_levels(p_values: Sequence[float | None]) -> list[float]:
    """Return the level that the interval of each of a family of tests has to have, to decide as Holm's method does.

    Of m tests with p-values, the one with the k-th smallest has the level 1 − 0.05 / (m − k + 1); from the first that
    this does not decide, all have the same. An interval of this level excludes the limit of its test exactly where
    Holm's method rejects it. Tests without a p-value have 95%.

    >>> [round(level, 4) for level in holm_levels([0.001, 0.2, None, 0.03])]
    [0.9833, 0.975, 0.95, 0.975]
    """
    levels = [LEVEL] * len(p_values)
    # The probability of a wrong decision that each test may have.
    error = 1 - LEVEL
    is_rejecting = True
    for step in _steps(p_values):
        if is_rejecting:
            error = (1 - LEVEL) / step.remaining
            is_rejecting = step.p_value <= error
        levels[step.position] = 1 - error
    return levels


def corrected(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return ratios that are shown together with p-values adjusted for their number; each keeps its own bounds.

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
    """Return the tests that have a p-value in the order in which the method takes them.

    >>> [(step.position, step.remaining) for step in _steps([0.04, None, 0.01])]
    [(2, 2), (0, 1)]
    """
    ordered = sorted((p_value, position) for position, p_value in enumerate(p_values) if p_value is not None)
    return [
        _Step(p_value, position, remaining=len(ordered) - earlier)
        for earlier, (p_value, position) in enumerate(ordered)
    ]
