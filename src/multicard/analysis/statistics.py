"""Medians and ratios over repeats with their intervals, and whether a difference is one.

Bounds are those of the 95 % percentile bootstrap: repeats are resampled with replacement. With few repeats that says
little. With up to five repeats it is their range, which covers the true median with a probability of
1 − 2^(1−n): 50 % with two repeats, 75 % with three, 88 % with four, 94 % with five. A ratio of two or three repeats to
two or three has the bounds lowest over highest and highest over lowest, so it differs from 1 only where the two ranges
do not overlap. Between equals that happens by chance in one of three comparisons with two repeats each, in one of ten
with three each, and more rarely with more.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

LEVEL = 0.95
RESAMPLES = 9999
AT_A_TIME = 200  # resamples, which bounds memory and is fastest
SEED = 0  # the same repeats give the same bounds, whatever else is computed
FEW_REPEATS = 3  # a difference between fewer comes with this caveat
BY_CHANCE = "such a difference is often due to chance"
ROUNDING = 1e-9  # how far from 1 a ratio of equals may come out

Values = Iterable[float | None]
Sample = tuple[np.ndarray, ...]
Bounds = tuple[float, float]
Verdict = Literal["more", "less", "none", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A median over repeats, or a ratio of two medians, with its uncertainty.

    `value` is None where nothing is known, the bounds `low` and `high` are both None where there are none. `repeats`
    counts the values behind it, of a ratio those of the side with fewer; `left_out` those that were not finite numbers.
    """

    value: float | None
    low: float | None
    high: float | None
    repeats: int
    left_out: int = 0


def median_of(values: Values) -> Interval:
    """Median with its interval; without bounds below two values.

    >>> median_of([3.0, 1.0, 2.0])
    Interval(value=2.0, low=1.0, high=3.0, repeats=3, left_out=0)
    """
    return medians_of([values])[0]


def ratio_of(values: Values, base: Values) -> Interval:
    """Ratio of the median of `values` to that of `base`, both drawn again; bounds only if both have two values.

    It is unknown unless all of `base` is above zero.

    >>> ratio_of([6.0, 8.0, 10.0], [2.0, 4.0, 2.5])
    Interval(value=3.2, low=1.5, high=5.0, repeats=3, left_out=0)
    """
    return ratios_of([(values, base)])[0]


def quotient(one: Interval, other: Interval) -> Interval:
    """One over the other, with the widest possible bounds: rather too wide than too narrow."""
    value = one.value / other.value if one.value is not None and other.value else None
    bounds: tuple[float | None, float | None] = (None, None)
    if value is not None and None not in (one.low, one.high, other.low, other.high) and other.low > 0:
        bounds = (one.low / other.high, one.high / other.low)
    return Interval(value, *bounds, repeats=min(one.repeats, other.repeats))


def median_interval(intervals: Sequence[Interval]) -> Interval:
    """Median of several intervals: of their values, of their lows and of their highs.

    It has no bounds unless all have: each value may then be anything between its own, and so the median between these.

    >>> median_interval([Interval(2.0, 1.0, 3.0, 3), Interval(4.0, 3.5, 5.0, 2)])
    Interval(value=3.0, low=2.25, high=4.0, repeats=2, left_out=0)
    """
    ends = {name: [getattr(each, name) for each in intervals] for name in ("value", "low", "high")}
    middle = {name: None if None in found else float(np.median(found)) for name, found in ends.items()}
    return Interval(**middle, repeats=min(each.repeats for each in intervals))


def scaled(interval: Interval, factor: float) -> Interval:
    """The interval times a positive number."""
    ends = {name: getattr(interval, name) for name in ("value", "low", "high")}
    return replace(interval, **{name: None if end is None else end * factor for name, end in ends.items()})


def verdict(ratio: Interval) -> Verdict:
    """Whether a ratio shows more or less than 1: `none` where 1 is inside its bounds, `unknown` without bounds."""
    if ratio.low is None or ratio.high is None:
        return "unknown"
    if ratio.low > 1 + ROUNDING:
        return "more"
    return "less" if ratio.high < 1 - ROUNDING else "none"


def medians_of(groups: Sequence[Values]) -> list[Interval]:
    """As `median_of` for each of many groups, at once."""
    known = [_known(group) for group in groups]
    bounds = _bounds([(values,) for values, _ in known], np.median, 5, lambda values: (values.min(), values.max()))
    return [
        Interval(float(np.median(values)) if len(values) else None, *ends, len(values), left_out)
        for (values, left_out), ends in zip(known, bounds, strict=True)
    ]


def ratios_of(pairs: Sequence[tuple[Values, Values]]) -> list[Interval]:
    """As `ratio_of` for each of many pairs, at once."""
    known = [(_known(values), _known(base)) for values, base in pairs]
    samples = [
        (values, base) if base.min(initial=np.inf) > 0 else (values[:0], base[:0]) for (values, _), (base, _) in known
    ]
    bounds = _bounds(samples, _ratio, 3, _extreme_ratios)
    return [
        Interval(
            float(_ratio(*sample)) if min(map(len, sample)) else None,
            *ends,
            min(len(values), len(base)),
            without + base_without,
        )
        for ((values, without), (base, base_without)), sample, ends in zip(known, samples, bounds, strict=True)
    ]


def _ratio(values: np.ndarray, base: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(values, axis=axis) / np.median(base, axis=axis)


def _extreme_ratios(values: np.ndarray, base: np.ndarray) -> Bounds:
    ratios = np.divide.outer(values, base)
    return ratios.min(), ratios.max()


def _known(values: Values) -> tuple[np.ndarray, int]:
    """Give the finite numbers among `values`, and how many others there are."""
    numbers = pd.Series(values, dtype="Float64").to_numpy(dtype=float, na_value=np.nan)
    finite = numbers[np.isfinite(numbers)]
    return finite, len(numbers) - len(finite)


def _bounds(
    samples: Sequence[Sample], statistic: Callable[..., np.ndarray], few: int, extremes: Callable[..., Bounds]
) -> list[Bounds | tuple[None, None]]:
    """Bounds of the statistic of each sample, by one call for all samples of the same sizes.

    Where no part of a sample has more than `few` values, more than 2.5 % of all resamples have the lowest statistic,
    and as many the highest. The bounds are then its `extremes`, without drawing.
    """
    found: list[Bounds | tuple[None, None]] = [(None, None)] * len(samples)
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        sizes = tuple(map(len, sample))
        if min(sizes) >= 2 and max(sizes) <= few:
            low, high = extremes(*sample)
            found[index] = (float(low), float(high))
        elif min(sizes) >= 2:
            alike[sizes].append(index)
    for indices in alike.values():
        interval = bootstrap(
            tuple(np.stack(parts) for parts in zip(*(samples[index] for index in indices), strict=True)),
            statistic,
            n_resamples=RESAMPLES,
            batch=AT_A_TIME,
            vectorized=True,
            axis=-1,
            confidence_level=LEVEL,
            method="percentile",
            rng=SEED,
        ).confidence_interval
        for index, low, high in zip(indices, interval.low, interval.high, strict=True):
            found[index] = (float(low), float(high))
    return found
