"""The batch sizes that a search may try, and an upper bound of the throughput at sizes between two that ran."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

# Number of steps from a batch size to its double.
STEPS_PER_DOUBLING = 8


def doublings(start: int, largest: int) -> list[int]:
    """Return in rising order `start`, its doublings up to `largest`, its halves (rounded down) to 1, and `largest`.

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
    """Return in rising order all batch sizes that may be tried: the `doublings`, and the steps between them.

    >>> sizes(8, 32)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32]
    """
    chosen: list[int] = []
    for smaller, larger in itertools.pairwise(doublings(start, largest)):
        chosen += range(smaller, larger, max(1, smaller // STEPS_PER_DOUBLING))
    return [*chosen, largest]


class CurvePoint(NamedTuple):
    """A batch that ran: the logarithm of its size, and the logarithm of its throughput."""

    size: float
    throughput: float


class CurveSegment(NamedTuple):
    """Two neighbouring batches that ran, `start` and `end`, and the next ones on both sides; None if there is none."""

    before: CurvePoint | None
    start: CurvePoint
    end: CurvePoint
    after: CurvePoint | None

    def upper_bound(self, size: float) -> float:
        """Return an upper bound of the throughput at a size between `start` and `end`; both are logarithms.

        This assumes that the curve is concave: as the batch grows, the throughput rises less and less, or falls more
        and more. Then the curve between `start` and `end` is below the line through `before` and `start`, and below the
        line through `end` and `after`. If the curve bends up at `start` or `end`, as after a sudden fall, the line on
        that side is not used. If neither line is used, the bound is the larger throughput of `start` and `end`.

        At 2 in this example, the line from the left is at 2 + 2 · (2 − 1) = 4, that from the right at 3 + 0 · (2 − 3):

        >>> points = [CurvePoint(0, 0), CurvePoint(1, 2), CurvePoint(3, 3), CurvePoint(4, 3)]
        >>> CurveSegment(*points).upper_bound(2.0)
        3.0
        """
        slope = _slope(self.start, self.end)
        bounds = []
        if self.before is not None:
            slope_before = _slope(self.before, self.start)
            if slope_before >= slope:
                bounds.append(self.start.throughput + slope_before * (size - self.start.size))
        if self.after is not None:
            slope_after = _slope(self.end, self.after)
            if slope >= slope_after:
                bounds.append(self.end.throughput + slope_after * (size - self.end.size))
        return min(bounds, default=max(self.start.throughput, self.end.throughput))


def segments(curve: Sequence[CurvePoint]) -> list[CurveSegment]:
    """Return the segments of a curve; its points, and so the segments, are in rising order of size.

    >>> small, middle, large = CurvePoint(0, 0), CurvePoint(1, 2), CurvePoint(2, 3)
    >>> [(segment.before, segment.after) == (None, large) for segment in segments([small, middle, large])]
    [True, False]
    """
    padded = [None, *curve, None]
    befores, afters = padded[:-3], padded[3:]
    return [
        CurveSegment(before, start, end, after)
        for before, (start, end), after in zip(befores, itertools.pairwise(curve), afters, strict=True)
    ]


def _slope(first: CurvePoint, second: CurvePoint) -> float:
    return (second.throughput - first.throughput) / (second.size - first.size)
