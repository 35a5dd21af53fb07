"""Statistics of millions of values in groups, exact to the last unit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from multicard.trace.model import Integers

_BLOCK = 1 << 13  # for more, BLAS starts threads, which wait for each other where cores are busy
_MOST_PIECES = 400_000  # beyond that, finding the pieces of a group takes longer than sorting all of them once more


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


class Sorted(NamedTuple):
    """Some values side by side with those of the same group: group `codes[i]` has `values[edges[i]:edges[i + 1]]`."""

    codes: Integers
    edges: Integers
    values: Integers


def by_group(code: Integers, values: Integers) -> Sorted:
    """Put values side by side with those of the same group."""
    order = np.argsort(code, kind="stable")  # for codes of 16 bits a radix sort
    counts = np.bincount(code)
    present = np.flatnonzero(counts)
    return Sorted(present, np.concatenate(([0], np.cumsum(counts[present]))), values[order])


class Grouped:
    """Values by group, from parts that were sorted by group on their own."""

    def __init__(self, parts: Sequence[Sorted]) -> None:
        if len(parts) > 1 and sum(len(part.codes) for part in parts) > _MOST_PIECES:
            code = np.concatenate([np.repeat(part.codes, np.diff(part.edges)) for part in parts])
            parts = [by_group(code, np.concatenate([part.values for part in parts]))]
        self._pieces: dict[int, list[Integers]] = {}
        for part in parts:
            edges = part.edges.tolist()
            for code, first, last in zip(part.codes.tolist(), edges[:-1], edges[1:], strict=True):
                self._pieces.setdefault(code, []).append(part.values[first:last])

    def __len__(self) -> int:
        """Number of values."""
        return sum(len(piece) for pieces in self._pieces.values() for piece in pieces)

    def __contains__(self, group: int) -> bool:
        """Whether a group has values."""
        return group in self._pieces

    def of(self, groups: Iterable[int]) -> Integers:
        """All values of some groups, of which at least one has some."""
        pieces = [piece for group in groups for piece in self._pieces.get(group, ())]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
