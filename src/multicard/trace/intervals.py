"""Sets of moments as arrays of disjoint intervals: what sums over streams cannot tell.

A set is an int64 array of shape (n, 2), rows [start, end) in order of time, neither overlapping nor touching, none
empty. Nothing here loops over intervals in Python.
"""

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

NOTHING: Intervals = np.empty((0, 2), np.int64)
FIRST, LAST = -(1 << 62), 1 << 62  # the time that a complement covers


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Moments that at least one of the given intervals covers; they may overlap, nest, touch, be empty or unordered."""
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    real = ends > starts
    if not real.all():
        starts, ends = starts[real], ends[real]
    if len(starts) == 0:
        return NOTHING
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts.take(order), ends.take(order)
    return merged(starts, ends)[0]


def merged(starts: Intervals, ends: Intervals) -> tuple[Intervals, Intervals]:
    """Union of some intervals, at least one, none empty, ordered by start; and which of them opens each of its rows."""
    reach = np.maximum.accumulate(ends)
    firsts = np.flatnonzero(np.append(True, starts[1:] > reach[:-1]))
    rows = np.empty((2, len(firsts)), np.int64)
    starts.take(firsts, out=rows[0], mode="clip")
    reach.take(firsts[1:] - 1, out=rows[1, :-1], mode="clip")
    rows[1, -1] = reach[-1]
    return rows.T, firsts


def complement(moments: Intervals) -> Intervals:
    """Moments between `FIRST` and `LAST` that a set does not hold."""
    # Starts, and ends, lie side by side in memory.
    return np.stack((np.append(FIRST, moments[:, 1]), np.append(moments[:, 0], LAST))).T


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Moments that both sets hold."""
    return complement(union(*np.concatenate((complement(a), complement(b))).T))


class Measure:
    """Tells how much of a set lies between two moments, in logarithmic time."""

    def __init__(self, moments: Intervals) -> None:
        self._starts, self._ends = moments.T
        self._before = np.concatenate(([0], np.cumsum(self._ends - self._starts)))

    def between(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Length of the set within each [start, end)."""
        return self._until(np.asarray(ends, np.int64)) - self._until(np.asarray(starts, np.int64))

    def _until(self, moments: Intervals) -> Intervals:
        if len(self._starts) == 0:
            return np.zeros(len(moments), np.int64)
        last = np.searchsorted(self._starts, moments, side="right") - 1
        within = np.minimum(moments, self._ends[last]) - self._starts[last]
        return np.where(last >= 0, self._before[last] + within, 0)
