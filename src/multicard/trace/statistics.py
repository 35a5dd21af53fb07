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
    """Values side by side with those of the same group."""

    def __init__(self, code: Integers, values: Integers) -> None:
        self._edges = np.concatenate(([0], np.cumsum(np.bincount(code))))
        self._values = values[np.argsort(code, kind="stable")]  # for codes of 16 bits a radix sort

    def __len__(self) -> int:
        """Number of values."""
        return len(self._values)

    def __contains__(self, group: int) -> bool:
        """Whether a group has values."""
        return group + 1 < len(self._edges) and bool(self._edges[group] < self._edges[group + 1])

    def of(self, groups: Iterable[int]) -> Integers:
        """All values of some groups, of which each has some."""
        pieces = [self._values[self._edges[group] : self._edges[group + 1]] for group in groups]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
