"""Statistics of millions of values in groups, exact to the last unit."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from multicard.trace.model import Integers

_BLOCK = 1 << 13  # for more, BLAS starts threads, which wait for each other where cores are busy


@dataclass(frozen=True)
class Statistics:
    """Of some integers, in their unit; `std` is the sample standard deviation, None for one value."""

    calls: int
    total: int
    mean: float
    median: float
    min: int
    max: int
    std: float | None


def statistics(values: Integers) -> Statistics:
    """Statistics of at least one value."""
    n = len(values)
    total = int(values.sum(dtype=np.int64))
    mean = total / n
    middle = (n - 1) // 2, n // 2
    ordered = np.partition(values, middle)
    median = (int(ordered[middle[0]]) + int(ordered[middle[1]])) / 2
    squares = 0.0
    for at in range(0, n, _BLOCK):  # a float copy of all values would be the largest array of the whole analysis
        away = values[at : at + _BLOCK] - mean
        squares += float(away @ away)
    std = (squares / (n - 1)) ** 0.5 if n > 1 else None
    return Statistics(n, total, mean, median, int(values.min()), int(values.max()), std)


class Grouped:
    """Values by group."""

    def __init__(self, code: Integers, values: Integers) -> None:
        ends = np.cumsum(np.bincount(code))
        ordered = np.split(values.take(np.argsort(code, kind="stable")), ends[:-1])  # of 16 bits a radix sort
        self._of = {group: own for group, own in enumerate(ordered) if len(own)}

    def __contains__(self, group: int) -> bool:
        """Whether a group has values."""
        return group in self._of

    def of(self, groups: Iterable[int]) -> Integers:
        """All values of some groups, of which one has some."""
        return np.concatenate([self._of[group] for group in groups if group in self._of])
