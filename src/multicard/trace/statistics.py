"""Statistics of millions of values in groups, exact to the last unit."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.model import Integers

# Values per block of a sum of squares. For more, BLAS starts threads, which wait for each other where cores are busy.
_BLOCK = 1 << 13
# Values per block of `Grouped`: as many as fit into a core's cache.
_SORTED_BLOCK = 1 << 17


@dataclass(frozen=True)
class Statistics:
    """Statistics of some integers, in their unit; `std` is the sample standard deviation, None for one value."""

    calls: int
    total: int
    mean: float
    median: float
    min: int
    max: int
    std: float | None


def statistics(values: Integers) -> Statistics:
    """Return the statistics of at least one value.

    >>> statistics(np.array([2, 4, 9]))
    Statistics(calls=3, total=15, mean=5.0, median=4.0, min=2, max=9, std=3.605551275463989)
    """
    count = len(values)
    total = int(values.sum(dtype=np.int64))
    mean = total / count
    # For an odd number of values both positions are the same.
    lower, upper = (count - 1) // 2, count // 2
    ordered = np.partition(values, (lower, upper))
    median = (int(ordered[lower]) + int(ordered[upper])) / 2
    # Block by block, as a float copy of all values would be the largest array of the whole analysis.
    squares = 0.0
    for start in range(0, count, _BLOCK):
        deviations = values[start : start + _BLOCK] - mean
        squares += float(deviations @ deviations)
    std = (squares / (count - 1)) ** 0.5 if count > 1 else None
    return Statistics(count, total, mean, median, int(values.min()), int(values.max()), std)


class Grouped:
    """Values by group: they are cut into blocks, and in each block those of the same group are side by side."""

    def __init__(self, code: Integers, values: Integers) -> None:
        """Take the values, and the group of each as a number from 0."""
        self._count = len(code)
        self._pieces = defaultdict[int, list[Integers]](list)

        def sorted_block(start: int) -> tuple[Integers, Integers]:
            """Return the values of a block in the order of their groups, and where each group ends."""
            block_code = code[start : start + _SORTED_BLOCK]
            order = np.argsort(block_code, kind="stable")  # for codes of 16 bits a radix sort
            return values[start : start + _SORTED_BLOCK].take(order), np.cumsum(np.bincount(block_code))

        for ordered, ends in in_parallel(sorted_block, range(0, len(code), _SORTED_BLOCK)):
            counts = np.diff(ends, prepend=0)
            for group in np.flatnonzero(counts).tolist():
                self._pieces[group].append(ordered[ends[group] - counts[group] : ends[group]])

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    def __contains__(self, group: int) -> bool:
        """Return True if a group has values."""
        return group in self._pieces

    def of(self, groups: Iterable[int]) -> Integers:
        """Return all values of some groups, of which at least one has some."""
        return np.concatenate([piece for group in groups for piece in self._pieces[group]])
