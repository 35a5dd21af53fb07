"""Find the period of steps that come at equal distances, such as those that save or evaluate."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

# Fewer steps than this have equal distances by chance. Three random ones of 100 steps have them, with none missing
# before or after, in 0.3% of the cases.
FEWEST = 3
# At most this share of the steps may be outside of the period, for other reasons. Of the observed steps at which the
# period has one, at most this share may be missing.
OFF = 0.2


class Period(NamedTuple):
    """Steps at equal distances. Made by `period_of`."""

    # Distance from one of them to the next one, in steps.
    every: int
    # How many there are among the steps that were observed.
    times: int
    # Numbers of these steps.
    numbers: tuple[int, ...]

    @property
    def words(self) -> str:
        """The period in words: "every 10th step"."""
        return f"every {ordinal(self.every)} step"


def period_of(numbers: Collection[int], observed: Collection[int]) -> Period | None:
    """Return the period of some of the observed steps; None if they have none. Both are numbers of steps.

    The steps have a period if at least three of them (`FEWEST`) come at equal distances of two or more, through all
    observed steps, and at most a fifth are elsewhere (`OFF`). Of several periods, the one with most steps is returned.

    >>> period_of([16, 32, 48], range(1, 61))
    Period(every=16, times=3, numbers=(16, 32, 48))
    >>> period_of([16, 32, 48], range(1, 101)) is None, period_of([16, 32, 50], range(1, 61)) is None
    (True, True)
    """
    steps = np.array(sorted(numbers))
    observed_steps = np.array(sorted(observed))
    distances = {int(distance) for distance in np.diff(steps)} - {1}
    best: Period | None = None
    for every in sorted(distances):
        for remainder in {int(step) % every for step in steps}:
            period = _period(every, remainder, steps, observed_steps)
            if period is not None and (best is None or period.times > best.times):
                best = period
    return best


def _period(every: int, remainder: int, steps: np.ndarray, observed_steps: np.ndarray) -> Period | None:
    """Return the period of the steps whose numbers divided by `every` leave a remainder; None if they have none."""
    periodic = steps[steps % every == remainder]
    count = len(periodic)
    expected = np.count_nonzero(observed_steps % every == remainder)
    few_are_elsewhere = count >= (1 - OFF) * len(steps)
    few_are_missing = count >= (1 - OFF) * expected
    if count < FEWEST or not few_are_elsewhere or not few_are_missing:
        return None
    return Period(every, times=count, numbers=tuple(periodic.tolist()))


def ordinal(number: int) -> str:
    """Return a number as an ordinal.

    >>> [ordinal(number) for number in (2, 3, 11, 21, 100)]
    ['2nd', '3rd', '11th', '21st', '100th']
    """
    is_teen = number % 100 in (11, 12, 13)
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
