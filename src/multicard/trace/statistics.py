"""Statistics of millions of values in groups, exact to the last unit."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.model import Integers

_BLOCK = 1 << 13  # for more, BLAS starts threads, which wait for each other where cores are busy
_SORTED = 1 << 17  # values that fit a core's cache


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
    """Values by group: in each of many blocks those of the same group are side by side."""

    def __init__(self, code: Integers, values: Integers) -> None:
        self._number, self._pieces = len(code), defaultdict[int, list[Integers]](list)

        def sorted_block(at: int) -> tuple[Integers, Integers]:
            own = code[at : at + _SORTED]
            ordered = values[at : at + _SORTED].take(np.argsort(own, kind="stable"))  # of 16 bits a radix sort
            return ordered, np.cumsum(np.bincount(own))

        for ordered, ends in in_parallel(sorted_block, range(0, len(code), _SORTED)):
            for group in np.flatnonzero(np.diff(ends, prepend=0)).tolist():
                self._pieces[group].append(ordered[ends[group - 1] if group else 0 : ends[group]])

    def __len__(self) -> int:
        """Number of values."""
        return self._number

    def __contains__(self, group: int) -> bool:
        """Whether a group has values."""
        return group in self._pieces

    def of(self, groups: Iterable[int]) -> Integers:
        """All values of some groups, of which one has some."""
        return np.concatenate([piece for group in groups for piece in self._pieces[group]])
