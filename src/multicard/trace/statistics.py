"""Statistics of millions of integers in groups. Totals are summed as integers, so they are exact."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.model import Integers

# Values per block of a sum of squares. For larger blocks BLAS starts threads, which wait for each other if cores are
# busy.
_BLOCK = 1 << 13
# Values per block of `Grouped`: as many as fit into a core's cache.
_SORTED_BLOCK = 1 << 17


@dataclass(frozen=True)
class Statistics:
    """Statistics of some integers.

    `calls` is their number. All others are in the unit of the integers. `std` is the sample standard deviation, None
    for a single value.
    """

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
    lower = (count - 1) // 2
    upper = count // 2
    partly_ordered = np.partition(values, (lower, upper))
    median = (int(partly_ordered[lower]) + int(partly_ordered[upper])) / 2
    std = None
    if count > 1:
        std = (_squared_deviations(values, mean) / (count - 1)) ** 0.5
    return Statistics(
        calls=count,
        total=total,
        mean=mean,
        median=median,
        min=int(values.min()),
        max=int(values.max()),
        std=std,
    )


def _squared_deviations(values: Integers, mean: float) -> float:
    """Return the sum of the squares of the deviations from the mean.

    >>> _squared_deviations(np.array([2, 4, 9]), 5.0)
    26.0
    """
    # It is computed block by block, because a copy of all values as floats would be the largest array of the analysis.
    squares = 0.0
    for start in range(0, len(values), _BLOCK):
        deviations = values[start : start + _BLOCK] - mean
        squares += float(deviations @ deviations)
    return squares


class Grouped:
    """Values by group. They are divided into blocks, and within a block the values of a group are stored side by side.

    >>> durations = Grouped(code=np.array([0, 1, 0]), values=np.array([10, 20, 30]))
    >>> durations.of([0]).tolist(), 2 in durations, len(durations)
    ([10, 30], False, 3)
    """

    def __init__(self, code: Integers, values: Integers) -> None:
        """Take the values, and the group of each as a number from 0."""
        self._count = len(code)
        self._pieces: dict[int, list[Integers]] = {}

        def sorted_block(start: int) -> tuple[Integers, Integers]:
            """Return the values of a block in the order of their groups, and how many each group has."""
            block_code = code[start : start + _SORTED_BLOCK]
            block_values = values[start : start + _SORTED_BLOCK]
            # For codes of 16 bits a stable sort is a radix sort.
            order = np.argsort(block_code, kind="stable")
            return block_values.take(order), np.bincount(block_code)

        block_starts = range(0, len(code), _SORTED_BLOCK)
        for ordered, counts in in_parallel(sorted_block, block_starts):
            ends = np.cumsum(counts)
            for group in np.flatnonzero(counts).tolist():
                begin = ends[group] - counts[group]
                self._pieces.setdefault(group, []).append(ordered[begin : ends[group]])

    def __len__(self) -> int:
        """Return the number of values."""
        return self._count

    def __contains__(self, group: int) -> bool:
        """Return True if a group has values."""
        return group in self._pieces

    def of(self, groups: Iterable[int]) -> Integers:
        """Return all values of some groups; at least one of these groups must have values."""
        pieces: list[Integers] = []
        for group in groups:
            pieces += self._pieces.get(group, [])
        return np.concatenate(pieces)
