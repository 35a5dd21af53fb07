"""Find the period of steps that come at equal distances, such as those that save or evaluate."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

# Fewer steps than this have equal distances by chance. Three random ones of 100 steps have them, with none missing
# before or after, in 0.3% of the cases.
FEWEST = 3
# At most this share of the steps may be off the period, for other reasons, and at most this share of it may be missing.
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


def period_of(some: Collection[int], observed: Collection[int]) -> Period | None:
    """Return the period of some of the observed steps; None if they have none. Both are numbers of steps.

    They have a period if at least three of them follow each other at equal distances, through all observed steps, and
    at most a fifth are elsewhere (`OFF`).

    >>> period_of([16, 32, 48], range(1, 61))
    Period(every=16, times=3, numbers=(16, 32, 48))
    >>> period_of([16, 32, 48], range(1, 101)) is None, period_of([16, 32, 50], range(1, 61)) is None
    (True, True)
    """
    steps = np.array(sorted(some))
    everything = np.array(sorted(observed))
    best: Period | None = None
    for every in sorted({int(distance) for distance in np.diff(steps)} - {1}):
        for phase in {int(step) % every for step in steps}:
            found = steps[steps % every == phase]
            expected = int((everything % every == phase).sum())
            is_regular = len(found) >= max(FEWEST, (1 - OFF) * len(steps), (1 - OFF) * expected)
            if is_regular and (best is None or len(found) > best.times):
                best = Period(every, len(found), tuple(found.tolist()))
    return best


def ordinal(number: int) -> str:
    """Return a number as an ordinal.

    >>> [ordinal(number) for number in (2, 3, 11, 21, 100)]
    ['2nd', '3rd', '11th', '21st', '100th']
    """
    is_teen = number % 100 in (11, 12, 13)
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
