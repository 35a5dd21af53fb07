"""The batch sizes that a search may try, and a bound of the throughput between those that ran."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

# Steps between a batch size and its double.
STEPS_PER_DOUBLING = 8


def doublings(start: int, largest: int) -> list[int]:
    """Return batch sizes by doubling from a first one up to the largest, and by halving it down to one.

    >>> doublings(24, 200)
    [1, 3, 6, 12, 24, 48, 96, 192, 200]
    """
    chosen = {largest}
    size = start
    while size >= 1:
        chosen.add(size)
        size //= 2
    size = start
    while size <= largest:
        chosen.add(size)
        size *= 2
    return sorted(chosen)


def sizes(start: int, largest: int) -> list[int]:
    """Return all batch sizes that may be tried: doublings, and the steps between.

    >>> sizes(8, 32)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32]
    """
    chosen: list[int] = []
    for smaller, larger in itertools.pairwise(doublings(start, largest)):
        chosen += range(smaller, larger, max(1, smaller // STEPS_PER_DOUBLING))
    return [*chosen, largest]


class CurvePoint(NamedTuple):
    """A batch that ran: the logarithms of its size and of its throughput."""

    size: float
    throughput: float


def upper_bound(curve: Sequence[CurvePoint], left: int, size: float) -> float:
    """Return the most that the throughput can be at a size between a point of a curve and the next, in logarithms.

    This assumes that the curve bends down: with the batch the throughput rises ever less or falls ever more. Then it is
    below the line through the left point and the one before, and below that through the right point and the one after.
    Where the curve bends up at an end, as after a sudden fall, the line there bounds nothing. Where it bends up at
    both, nothing speaks for more than the two points have.

    `left`: the index of the left point.

    >>> rising = [CurvePoint(0, 0), CurvePoint(1, 2), CurvePoint(3, 3), CurvePoint(4, 3)]
    >>> upper_bound(rising, 1, 2.0)  # 2 + 2 × 1 by the line from the left, 3 + 0 × (-1) by that from the right
    3.0
    """
    right = left + 1
    start, end = curve[left], curve[right]
    between = _slope(start, end)
    bounds = []
    if left > 0:
        before = _slope(curve[left - 1], start)
        if before >= between:
            bounds.append(start.throughput + before * (size - start.size))
    if right + 1 < len(curve):
        after = _slope(end, curve[right + 1])
        if between >= after:
            bounds.append(end.throughput + after * (size - end.size))
    return min(bounds, default=max(start.throughput, end.throughput))


def _slope(first: CurvePoint, second: CurvePoint) -> float:
    return (second.throughput - first.throughput) / (second.size - first.size)
