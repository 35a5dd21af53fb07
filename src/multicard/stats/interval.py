"""An estimate with its confidence interval, how it is worded, and whether it shows a difference."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from multicard.core.units import in_digits

LEVEL = 0.95  # coverage of intervals, unless another one is stated; 1 − LEVEL is the level of tests
EQUAL_REPEATS = "repeats are equal to the last digit, so there is no interval"

Verdict = Literal["more", "less", "none", "unknown"]


@dataclass(frozen=True)
class Interval:
    """A mean, or a ratio of means, over repeats, with its confidence interval. Made by `multicard.stats.pool`.

    There is always a value: a mean or ratio that is not known is None in place of an interval. `low` and `high` are
    None where nothing shows the uncertainty, as for a single repeat.
    """

    value: float
    low: float | None
    high: float | None
    # Values of a mean. Of a ratio the number of blocks that both sides have, or, where sides are not paired by blocks,
    # the number of values of the side with fewer.
    repeats: int
    coverage: float | None = None  # the probability with which the bounds contain the truth
    # Two-sided, of the hypothesis that a ratio is 1 (or the `against` that the estimate was tested against).
    p_value: float | None = None
    # Degrees of freedom of the t distribution that gives the bounds and the p-value; None without these.
    freedom: float | None = field(default=None, repr=False, compare=False)
    # Words in place of the number of repeats, where that number alone would mislead: some repeats have no partner, the
    # sides have different numbers of them, or they are equal.
    counts: str | None = field(default=None, repr=False, compare=False)

    def map(self, function: Callable[[float], float]) -> "Interval":
        """Return the interval of a function of the value; the function has to be monotonic.

        >>> Interval(2.0, 1.0, 4.0, 3).map(lambda value: 1 / value)
        Interval(value=0.5, low=0.25, high=1.0, repeats=3, coverage=None, p_value=None)
        """
        value = function(self.value)
        if self.low is None or self.high is None:
            return replace(self, value=value)
        # A function that falls, such as the inverse, exchanges the bounds.
        low, high = sorted((function(self.low), function(self.high)))
        return replace(self, value=value, low=low, high=high)

    def without_bounds(self) -> "Interval":
        """Return the value alone."""
        return replace(self, low=None, high=None)

    def format(self, show: Callable[[float], str] | None = None, unit: str = "") -> str:
        """Return the value in a unit, with its interval and the number of repeats.

        Numbers have three digits, or as many more as the width of the interval needs; `show` words them otherwise.

        >>> Interval(1.25, 1.2, 1.3, 3, coverage=0.975).format(), Interval(1.25, None, None, 1).format(unit="× as fast")
        ('1.25 (97.5% CI 1.20 to 1.30, n=3)', '1.25× as fast (n=1)')
        """
        value, details = self.texts(show)
        return f"{value}{unit} ({details})"

    def texts(self, show: Callable[[float], str] | None = None) -> tuple[str, str]:
        """Return what `format` joins: the value, and the interval with the number of repeats.

        >>> Interval(1.25, 1.2, 1.3, 3).texts()
        ('1.25', '95% CI 1.20 to 1.30, n=3')
        """
        value, low, high = self._words(show)
        repeats = f"n={self.counts or self.repeats}"
        if low is None:
            return value, repeats
        level = f"{100 * (self.coverage or LEVEL):.3g}%"
        return value, f"{level} CI {low} to {high}, {repeats}"

    def _words(self, show: Callable[[float], str] | None) -> tuple[str, str | None, str | None]:
        """Return the value and its bounds as text; None for bounds that are not known, or not finite."""
        if show is None:
            return in_digits(self.value, self.low, self.high)
        if self.low is None or self.high is None:
            return show(self.value), None, None
        return show(self.value), show(self.low), show(self.high)


def interval_columns(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return an interval as the cells of a table: columns `<name>`, `<name>_low` and `<name>_high`.

    >>> interval_columns("speedup", Interval(1.9, 1.8, 2.0, 3)), interval_columns("speedup", None)["speedup"]
    ({'speedup': 1.9, 'speedup_low': 1.8, 'speedup_high': 2.0}, None)
    """
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def is_significant(p_value: float) -> bool:
    """Return whether a p-value shows a difference: chance alone gives one as small in at most 5%."""
    return p_value <= 1 - LEVEL


def verdict(ratio: Interval | None) -> Verdict:
    """Return whether a ratio is shown to be `more` or `less` than 1.

    `none` if no difference is shown, `unknown` without a ratio or without a p-value.

    >>> verdict(Interval(1.1, 1.05, 1.15, 3, p_value=0.01)), verdict(Interval(1.1, 0.9, 1.3, 3, p_value=0.2))
    ('more', 'none')
    """
    if ratio is None or ratio.p_value is None:
        return "unknown"
    if not is_significant(ratio.p_value):
        return "none"
    return "more" if ratio.value > 1 else "less"
