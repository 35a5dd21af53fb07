"""Values over repeats with their intervals, which `multicard.analysis.pooling` estimates, and whether a ratio is one.

Verdicts on several comparisons that are shown together are corrected by Holm's method (Scandinavian Journal of
Statistics 6, 1979).
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from multicard.core.units import in_digits

LEVEL = 0.95
EQUAL_REPEATS = "repeats are equal to the last digit, so there is no interval"

Values = Iterable[float | None]
Blocks = Mapping[Hashable, float | None]  # values by block; ratios of such are paired
Verdict = Literal["more", "less", "none", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A value over repeats with its uncertainty; None is what is not known."""

    value: float | None
    low: float | None
    high: float | None
    repeats: int  # of a ratio the number of blocks, or without such the values of the side with fewer
    coverage: float | None = None  # the probability with which the bounds contain the truth
    # Of a ratio, two-sided: how likely one so far from 1 is between equals, or from `against`.
    p_value: float | None = None
    # Of the t distribution that bounds and p-value are of; None without these.
    freedom: float | None = field(default=None, repr=False, compare=False)
    # How many repeats, in words, where `repeats` does not tell: that some have no partner, how many each side has, or
    # that they are equal.
    counts: str | None = field(default=None, repr=False, compare=False)

    def map(self, of: Callable[[float], float]) -> "Interval":
        """The interval of a function of the value that only rises, or only falls.

        >>> Interval(2.0, 1.0, 4.0, 3).map(lambda value: 1 / value)
        Interval(value=0.5, low=0.25, high=1.0, repeats=3, coverage=None, p_value=None)
        """
        value, low, high = (None if end is None else of(end) for end in (self.value, self.low, self.high))
        if low is not None and low > high:
            low, high = high, low
        return replace(self, value=value, low=low, high=high)

    def columns(self, name: str) -> dict[str, float | None]:
        """The value and its bounds by the names of their columns: `name`, `name_low` and `name_high`."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def format(self, show: Callable[[float], str] | None = None, unit: str = "") -> str:
        """The value in a unit with its interval: three digits, or as many more as that needs, or as `show` words them.

        >>> Interval(1.25, 1.2, 1.3, 3, coverage=0.975).format(), Interval(1.25, None, None, 1).format(unit="× as fast")
        ('1.25 (97.5% CI 1.20 to 1.30, n=3)', '1.25× as fast (n=1)')
        """
        ends = self.value, self.low, self.high
        value, low, high = in_digits(*ends) if show is None else (None if each is None else show(each) for each in ends)
        interval = "" if low is None else f"{100 * (self.coverage or LEVEL):.3g}% CI {low} to {high}, "
        return f"{value}{unit} ({interval}n={self.counts or self.repeats})"


def geometric_mean(values: Blocks | Values) -> float | None:
    """Geometric mean of numbers above zero; None of others, or of none.

    >>> round(geometric_mean([2.0, 8.0]), 6), geometric_mean({1: 0.0})
    (4.0, None)
    """
    numbers = known(values)
    return float(np.exp(np.log(numbers).mean())) if len(numbers) and numbers.min() > 0 else None


def ratio_by_block(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """Ratio in each block that both have; blocks whose values have no logarithm are left out.

    >>> ratio_by_block({1: 6.0, 2: 8.0, 3: 1.0}, {1: 2.0, 2: 0.0, 4: 1.0})
    {1: 3.0}
    """
    return {block: values[block] / base[block] for block in values if base.get(block, 0) > 0 and values[block] > 0}


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p-values for their number by Holm's method; None is no comparison and stays.

    Those of at most 5% are then differences, with one wrong or more among them in at most 5% of families.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    adjusted: list[float | None] = [None] * len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    highest = 0.0
    for rank, (p, index) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[index] = highest
    return adjusted


def corrected(family: Sequence[Interval]) -> list[Interval]:
    """Ratios that are shown together, with p-values by Holm's method; each keeps its own interval."""
    adjusted = holm([ratio.p_value for ratio in family])
    return [replace(ratio, p_value=p) for ratio, p in zip(family, adjusted, strict=True)]


def verdict(ratio: Interval) -> Verdict:
    """Whether a ratio shows more or less than 1: `none` where its p-value is above 5%, `unknown` without one."""
    if ratio.p_value is None:
        return "unknown"
    if ratio.p_value > 1 - LEVEL:
        return "none"
    return "more" if ratio.value > 1 else "less"


def known(values: Blocks | Values) -> np.ndarray:
    """Give the finite numbers among `values`."""
    listed = values.values() if isinstance(values, Mapping) else values
    return np.array([float(each) for each in listed if is_number(each)])


def shared_blocks(samples: Sequence[Blocks | Values]) -> list[Hashable]:
    """Blocks in which all samples have a number; none where one has no blocks."""
    if not samples or not all(isinstance(each, Mapping) for each in samples):
        return []
    first, *others = samples
    return [block for block in first if all(is_number(each.get(block)) for each in (first, *others))]


def is_number(value: float | None) -> bool:
    """Whether a value is a finite number."""
    # Of a nullable column what is unknown is pandas.NA, which is no float.
    try:
        return value is not None and math.isfinite(value)
    except TypeError:
        return False
