"""Means and ratios over repeats with their intervals, and whether a difference is one.

A value is the geometric mean with a t interval of its logarithms; of shares and other values that may be zero, the
arithmetic mean with a t interval. Intervals of configurations and of their ratios are those of
`multicard.analysis.pooling`, which assumes that logarithms are normal. Verdicts on several comparisons that are shown
together are corrected by Holm's method (Scandinavian Journal of Statistics 6, 1979). Geometric means of ratios: Philip
Fleming and John Wallace, CACM 29(3), 1986.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from multicard.core.units import confidence, in_digits

LEVEL = 0.95
ROUNDING = 1e-9  # how far from the expected ratio one of equals may come out

Values = Iterable[float | None]
Blocks = Mapping[Hashable, float | None]  # values by block; ratios of such are paired
Verdict = Literal["more", "less", "none", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A value over repeats with its uncertainty.

    Attributes
    ----------
    value
        None where nothing is known.
    low, high
        The bounds, both None where there are none.
    repeats
        Values behind it; of a ratio the number of blocks, or without such the values of the side with fewer.
    left_out
        Values that were not finite numbers, or in no block that all sides have.
    coverage
        The probability with which the bounds contain the truth; None without bounds.
    p_value
        Of a ratio, two-sided: how likely one so far from 1 is between equals, or from `against`. None without an
        interval.
    """

    value: float | None
    low: float | None
    high: float | None
    repeats: int
    left_out: int = 0
    coverage: float | None = None
    p_value: float | None = None

    def format(self, show: Callable[[float], str] | None = None, unit: str = "") -> str:
        """The value in a unit with its interval: three digits, or as many more as that needs, or as `show` words them.

        >>> Interval(1.25, 1.2, 1.3, 3, coverage=0.95).format(), Interval(1.25, None, None, 1).format(unit="× as fast")
        ('1.25 (95% CI 1.20 to 1.30, n=3)', '1.25× as fast (n=1)')
        """
        ends = self.value, self.low, self.high
        value, low, high = in_digits(*ends) if show is None else (None if each is None else show(each) for each in ends)
        return f"{value}{unit} {confidence(low, high, self.repeats, self.coverage or LEVEL)}"


def mean_of(values: Blocks | Values, against: float | None = None, level: float = LEVEL) -> Interval:
    """Arithmetic mean with its t interval: for shares and other values that are not compared as ratios.

    The p-value is that of a mean of `against`, if given.

    >>> mean_of([0.2, 0.4]).value, mean_of([0.2]).low
    (0.30000000000000004, None)
    """
    numbers, left_out = known(values)
    n = len(numbers)
    if n == 0:
        return Interval(None, None, None, 0, left_out)
    mean = float(numbers.mean())
    if n == 1:
        return Interval(mean, None, None, 1, left_out)
    error = float(numbers.std(ddof=1) / math.sqrt(n))
    reach = float(stdtrit(n - 1, (1 + level) / 2)) * error
    p = None if against is None else _p_value(mean - against, error, n - 1)
    return Interval(mean, mean - reach, mean + reach, n, left_out, level, p)


def geometric_mean(values: Blocks | Values) -> float | None:
    """Geometric mean of numbers above zero; None of others, or of none.

    >>> round(geometric_mean([2.0, 8.0]), 6), geometric_mean({1: 0.0})
    (4.0, None)
    """
    numbers, _ = known(values)
    return float(np.exp(np.log(numbers).mean())) if len(numbers) and numbers.min() > 0 else None


def pooled_ratio(
    pairs: Sequence[tuple[Blocks | Values, Blocks | Values]], against: float = 1.0, level: float = LEVEL
) -> Interval:
    """Geometric mean of the ratios of several pairs: one comparison, whatever the number of configurations.

    Per block the logarithms of the ratios are averaged over the pairs, and the interval is that over blocks, so it
    holds whatever pairs of a block have in common. It is about these pairs, not about others. Without two blocks that
    all have there is no interval.

    >>> found = pooled_ratio([({1: 2.0, 2: 2.0}, {1: 1.0, 2: 1.0}), ({1: 8.0, 2: 8.0}, {1: 1.0, 2: 1.0})])
    >>> round(found.value, 6)
    4.0
    """
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    blocks = shared_blocks([*sides[0], *sides[1]])
    if not blocks:
        means = [geometric_mean(each) for side in sides for each in side]
        if not pairs or None in means:
            return Interval(None, None, None, 0)
        logs = np.log(means)
        return Interval(math.exp(2 * (logs[: len(pairs)].mean() - logs.mean())), None, None, 0)
    values, base = (np.array([[each[block] for block in blocks] for each in side], dtype=float) for side in sides)
    left_out = sum(len(each) for side in sides for each in side) - values.size - base.size
    if min(values.min(), base.min()) <= 0:
        return Interval(None, None, None, len(blocks), left_out)
    logs = (np.log(values) - np.log(base)).mean(axis=0)
    if len(blocks) == 1:
        return Interval(math.exp(logs[0]), None, None, 1, left_out)
    error = logs.std(ddof=1) / math.sqrt(len(blocks))
    return interval_of_log(float(logs.mean()), float(error), len(blocks) - 1, len(blocks), left_out, against, level)


def ratio_by_block(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """Ratio in each block that both have; blocks whose values have no logarithm are left out.

    >>> ratio_by_block({1: 6.0, 2: 8.0, 3: 1.0}, {1: 2.0, 2: 0.0, 4: 1.0})
    {1: 3.0}
    """
    return {block: values[block] / base[block] for block in values if base.get(block, 0) > 0 and values[block] > 0}


def scaled(interval: Interval, factor: float) -> Interval:
    """The interval times a positive number."""
    ends = {name: getattr(interval, name) for name in ("value", "low", "high")}
    times = {name: None if end is None else end * factor for name, end in ends.items()}
    return replace(interval, **times, p_value=None)


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


def interval_of_log(
    estimate: float,
    error: float,
    freedom: float,
    repeats: int,
    left_out: int,
    against: float = 1.0,
    level: float = LEVEL,
) -> Interval:
    """The interval of a ratio from the mean of its logarithm, its standard error and degrees of freedom."""
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    with np.errstate(over="ignore"):
        low, value, high = (float(np.exp(end)) for end in (estimate - reach, estimate, estimate + reach))
    p = _p_value(estimate - math.log(against), error, freedom)
    return Interval(value, low, high, repeats, left_out, level, p)


def _p_value(difference: float, error: float, freedom: float) -> float:
    """How likely a difference so large is by chance, on both sides; one of rounding is none."""
    if abs(difference) <= ROUNDING:
        return 1.0
    return 2 * float(stdtr(freedom, -abs(difference) / error)) if error > 0 else 0.0


def known(values: Blocks | Values) -> tuple[np.ndarray, int]:
    """Give the finite numbers among `values`, and how many others there are."""
    every = list(values.values() if isinstance(values, Mapping) else values)
    try:
        numbers = np.array(every, dtype=float)  # None is not a number then
        numbers = numbers[np.isfinite(numbers)]
    except TypeError:
        numbers = np.array([float(value) for value in every if _is_number(value)])
    return numbers, len(every) - len(numbers)


def shared_blocks(samples: Sequence[Blocks | Values]) -> list[Hashable]:
    """Blocks in which all samples have a number; none where one has no blocks."""
    if not samples or not all(isinstance(each, Mapping) for each in samples):
        return []
    first, *others = samples
    return [block for block in first if all(_is_number(each.get(block)) for each in (first, *others))]


def _is_number(value: float | None) -> bool:
    # Of a nullable column what is unknown is pandas.NA, which is no float.
    try:
        return value is not None and math.isfinite(value)
    except TypeError:
        return False
