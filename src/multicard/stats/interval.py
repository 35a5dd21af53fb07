"""An estimate with its confidence interval: its text, and the verdict whether it shows a difference."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from multicard.core.units import in_digits

# Coverage of intervals, unless another one is stated. A p-value of at most 1 − LEVEL shows a difference.
LEVEL = 0.95
# Bounds of which the upper one is more than so many times the lower one say too little to be quoted.
WIDE = 2.0
EQUAL_REPEATS = "repeats are equal to the last digit, so there is no interval"

Verdict = Literal["more", "less", "none", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A mean, or a ratio of means, over repeats, with its confidence interval. Made by `multicard.stats.pool`.

    `value` is always known: functions return None instead of an `Interval` if it is not. `low` and `high` are None if
    the uncertainty is unknown, for example for a single repeat.
    """

    value: float
    low: float | None
    high: float | None
    # For a mean: the number of values. For a ratio that is paired by blocks: the number of blocks that both sides have.
    # For any other ratio: the number of values of the side that has fewer.
    repeats: int
    # Probability with which the bounds contain the true value; None where it was not stated, which stands for `LEVEL`.
    coverage: float | None = None
    # Two-sided p-value of the hypothesis that the true value is 1, or `against` where `Pool` was given it.
    p_value: float | None = None
    # Degrees of freedom of the t distribution from which bounds and p-value are; None if these are None.
    freedom: float | None = field(default=None, repr=False, compare=False)
    # Text that is shown instead of `repeats` where that number alone would mislead: because some repeats have no
    # partner, the sides have different numbers of repeats, or repeats are equal. None to show `repeats`.
    counts: str | None = field(default=None, repr=False, compare=False)
    # The least and the largest value of which this is the mean; of a ratio that is paired by blocks, those of a block.
    # None for any other ratio, for a single repeat, and where it was not kept.
    measured: tuple[float, float] | None = field(default=None, repr=False, compare=False)

    @property
    def is_wide(self) -> bool:
        """True if the upper bound is more than `WIDE` times the lower one.

        >>> Interval(1.2, 0.4, 3.8, 3).is_wide, Interval(1.2, 1.1, 1.3, 3).is_wide, Interval(1.2, None, None, 1).is_wide
        (True, False, False)
        """
        return self.low is not None and self.high is not None and self.high > WIDE * max(self.low, 0.0)

    def map(self, function: Callable[[float], float]) -> "Interval":
        """Return the interval with a function applied to its value and bounds; the function has to be monotonic.

        >>> Interval(2.0, 1.0, 4.0, 3).map(lambda value: 1 / value)
        Interval(value=0.5, low=0.25, high=1.0, repeats=3, coverage=None, p_value=None)
        """
        value = function(self.value)
        measured = None
        if self.measured is not None:
            least, largest = sorted(map(function, self.measured))
            measured = least, largest
        if self.low is None or self.high is None:
            return replace(self, value=value, measured=measured)
        bounds = [function(self.low), function(self.high)]
        # A decreasing function, such as 1 / value, exchanges the bounds.
        low, high = sorted(bounds)
        return replace(self, value=value, low=low, high=high, measured=measured)

    def without_bounds(self) -> "Interval":
        """Return the estimate with `low` and `high` set to None; all else stays, the p-value included."""
        return replace(self, low=None, high=None)

    def format(self, show: Callable[[float], str] | None = None, unit: str = "") -> str:
        """Return the value with `unit` behind it, its interval and the number of repeats as text.

        `show`: formats the value and the bounds. By default they have three digits, or more if the width of the
        interval needs more.

        >>> Interval(1.25, 1.2, 1.3, 3, coverage=0.975).format(), Interval(1.25, None, None, 1).format(unit="× as fast")
        ('1.25 (97.5% CI 1.20 to 1.30, n=3)', '1.25× as fast (n=1)')
        """
        value, details = self.texts(show)
        return f"{value}{unit} ({details})"

    def texts(self, show: Callable[[float], str] | None = None) -> tuple[str, str]:
        """Return the two texts that `format` joins: the value, and the interval with the number of repeats.

        >>> Interval(1.25, 1.2, 1.3, 3).texts()
        ('1.25', '95% CI 1.20 to 1.30, n=3')
        """
        value, low, high = self._words(show)
        repeats = f"n={self.counts or self.repeats}"
        if low is None:
            return value, repeats
        level = self.coverage or LEVEL
        return value, f"{100 * level:.3g}% CI {low} to {high}, {repeats}"

    def _words(self, show: Callable[[float], str] | None) -> tuple[str, str | None, str | None]:
        """Return the value and its bounds as texts; bounds are None if one is None or infinite."""
        if show is None:
            return in_digits(self.value, self.low, self.high)
        value = show(self.value)
        if self.low is None or self.high is None:
            return value, None, None
        are_finite = math.isfinite(self.low) and math.isfinite(self.high)
        if not are_finite:
            return value, None, None
        return value, show(self.low), show(self.high)


def interval_columns(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return the cells of the columns `<name>`, `<name>_low` and `<name>_high`; all are None without an interval.

    >>> interval_columns("speedup", Interval(1.9, 1.8, 2.0, 3)), interval_columns("speedup", None)["speedup"]
    ({'speedup': 1.9, 'speedup_low': 1.8, 'speedup_high': 2.0}, None)
    """
    value = low = high = None
    if interval is not None:
        value = interval.value
        low = interval.low
        high = interval.high
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def is_significant(p_value: float) -> bool:
    """Return True if a p-value is at most 0.05, so that it shows a difference."""
    return p_value <= 1 - LEVEL


def verdict(ratio: Interval | None) -> Verdict:
    """Return `more` or `less` if a ratio is shown to be above or below 1.

    Return `none` if its p-value shows no difference, and `unknown` if there is no ratio or no p-value.

    >>> verdict(Interval(1.1, 1.05, 1.15, 3, p_value=0.01)), verdict(Interval(1.1, 0.9, 1.3, 3, p_value=0.2))
    ('more', 'none')
    """
    if ratio is None or ratio.p_value is None:
        return "unknown"
    if not is_significant(ratio.p_value):
        return "none"
    return "more" if ratio.value > 1 else "less"
