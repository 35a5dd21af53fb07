"""Sets of moments as arrays of disjoint intervals: what sums over streams cannot tell.

A set is an int64 array of shape (n, 2), rows [start, end) in order of time, neither overlapping nor touching, none
empty. Nothing here loops over intervals in Python.
"""

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

NOTHING: Intervals = np.empty((0, 2), np.int64)
FIRST, LAST = -(1 << 62), 1 << 62  # the time that a complement covers
ALL_TIME: Intervals = np.array([[FIRST, LAST]], np.int64)


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return the moments that at least one of the given intervals covers.

    The intervals may overlap, nest, touch, be empty or unordered.
    """
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    real = ends > starts
    if not real.all():
        starts, ends = starts[real], ends[real]
    if len(starts) == 0:
        return NOTHING
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts.take(order), ends.take(order)
    if (starts[1:] > ends[:-1]).all():  # disjoint already, as the calls of one thread
        return np.array((starts, ends)).T
    return merged(starts, ends)[0]


def merged(starts: Intervals, ends: Intervals) -> tuple[Intervals, Intervals]:
    """Return the union of some intervals, and the index of the interval that opens each row of it.

    The intervals are ordered by start. There is at least one, and none is empty.
    """
    reach = np.maximum.accumulate(ends)
    firsts = np.flatnonzero(np.append(True, starts[1:] > reach[:-1]))
    rows = np.empty((2, len(firsts)), np.int64)
    starts.take(firsts, out=rows[0], mode="clip")
    reach.take(firsts[1:] - 1, out=rows[1, :-1], mode="clip")
    rows[1, -1] = reach[-1]
    return rows.T, firsts


def together(sets: list[Intervals]) -> Intervals:
    """Return the moments that at least one of some sets holds."""
    return union(*np.concatenate([NOTHING, *sets]).T)


def complement(moments: Intervals) -> Intervals:
    """Return the moments between `FIRST` and `LAST` that a set does not hold."""
    starts = np.append(FIRST, moments[:, 1])
    ends = np.append(moments[:, 0], LAST)
    return np.stack((starts, ends)).T  # starts, and ends, lie side by side in memory


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that both sets hold.

    The time is logarithmic in the size of the larger set for each row of the smaller one.
    """
    few, many = sorted((a, b), key=len)
    if not len(few):
        return NOTHING
    # The rows of `many` that end after a row of `few` begins, and begin before it ends, overlap with it.
    first = np.searchsorted(many[:, 1], few[:, 0], side="right")
    counts = np.searchsorted(many[:, 0], few[:, 1], side="left") - first
    own = np.repeat(np.arange(len(few)), counts)
    # Position of each overlap among those of its row of `few`.
    position = np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)
    other = first.take(own) + position
    starts = np.maximum(few[:, 0].take(own), many[:, 0].take(other))
    ends = np.minimum(few[:, 1].take(own), many[:, 1].take(other))
    return np.stack((starts, ends)).T


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that the first set holds and the second does not."""
    found = intersection(a, complement(b)) if len(a) and len(b) else a
    return found[found[:, 1] > found[:, 0]]


class Measure:
    """The length of a set between any two moments, found in logarithmic time."""

    def __init__(self, moments: Intervals) -> None:
        self.moments = moments
        self._starts, self._ends = moments.T
        self._before = np.concatenate(([0], np.cumsum(self._ends - self._starts)))

    def between(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Return the length of the set within each [start, end)."""
        return self._until(np.asarray(ends, np.int64)) - self._until(np.asarray(starts, np.int64))

    def _until(self, moments: Intervals) -> Intervals:
        if len(self._starts) == 0:
            return np.zeros(len(moments), np.int64)
        last = np.searchsorted(self._starts, moments, side="right") - 1
        within = np.minimum(moments, self._ends[last]) - self._starts[last]
        return np.where(last >= 0, self._before[last] + within, 0)


class CommonMeasure:
    """The length of what two sets have in common between any two moments, without a list of it.

    Built with one look-up in the larger set for each row of the smaller one.
    """

    def __init__(self, a: Measure, b: Intervals) -> None:
        if len(a.moments) < len(b):
            self._few, self._many = a.moments, Measure(b)
        else:
            self._few, self._many = b, a
        lengths = self._many.between(*self._few.T) if len(self._few) else np.empty(0, np.int64)
        self._before = np.concatenate(([0], np.cumsum(lengths)))

    def between(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Return the length of the common moments within each [start, end)."""
        return self._until(np.asarray(ends, np.int64)) - self._until(np.asarray(starts, np.int64))

    def _until(self, moments: Intervals) -> Intervals:
        if not len(self._few):
            return np.zeros(len(moments), np.int64)
        last = np.searchsorted(self._few[:, 0], moments, side="right") - 1
        row_starts = self._few[last, 0]
        within = self._many.between(row_starts, np.minimum(moments, self._few[last, 1]))
        return np.where(last >= 0, self._before[last] + within, 0)
