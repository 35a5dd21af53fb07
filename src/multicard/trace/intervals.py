"""Sets of moments as arrays of disjoint intervals, and how long they and their combinations last.

A set is an int64 array of shape (n, 2), rows [start, end) in nanoseconds, in order of time, neither overlapping nor
touching, none empty. Lengths of sets count a moment once, however many streams or threads are active in it, which sums
of durations do not. Nothing here loops over intervals in Python.

>>> device = union([0, 5, 20], [10, 15, 30])
>>> device.tolist()
[[0, 15], [20, 30]]
>>> difference(device, union([12], [25])).tolist()
[[0, 12], [25, 30]]
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
    is_real = ends > starts
    if not is_real.all():
        starts, ends = starts[is_real], ends[is_real]
    if len(starts) == 0:
        return NOTHING
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts = starts.take(order)
        ends = ends.take(order)
    # The calls of one thread are disjoint already, which is cheaper to check than to merge.
    if (starts[1:] > ends[:-1]).all():
        return np.array((starts, ends)).T
    moments, _ = merged(starts, ends)
    return moments


def merged(starts: Intervals, ends: Intervals) -> tuple[Intervals, Intervals]:
    """Return the union of some intervals, and the index of the interval that opens each row of it.

    The intervals are ordered by start. There is at least one, and none is empty.

    >>> moments, openers = merged(np.array([0, 5, 20]), np.array([10, 8, 30]))
    >>> moments.tolist(), openers.tolist()
    ([[0, 10], [20, 30]], [0, 2])
    """
    # An interval opens a new row if it begins after all intervals before it have ended.
    latest_end = np.maximum.accumulate(ends)
    openers = np.flatnonzero(np.append(True, starts[1:] > latest_end[:-1]))
    # Filled in place, as starts and ends that lie side by side in memory are what later look-ups are fast on.
    rows = np.empty((2, len(openers)), np.int64)
    starts.take(openers, out=rows[0], mode="clip")
    latest_end.take(openers[1:] - 1, out=rows[1, :-1], mode="clip")
    rows[1, -1] = latest_end[-1]
    return rows.T, openers


def together(sets: list[Intervals]) -> Intervals:
    """Return the moments that at least one of some sets holds."""
    starts, ends = np.concatenate([NOTHING, *sets]).T
    return union(starts, ends)


def complement(moments: Intervals) -> Intervals:
    """Return the moments between `FIRST` and `LAST` that a set does not hold."""
    starts = np.append(FIRST, moments[:, 1])
    ends = np.append(moments[:, 0], LAST)
    return _rows(starts, ends)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that both sets hold.

    The time is logarithmic in the size of the larger set for each row of the smaller one.
    """
    few, many = sorted((a, b), key=len)
    if not len(few):
        return NOTHING
    few_starts, few_ends = few.T
    many_starts, many_ends = many.T
    # A row of `few` overlaps with the rows of `many` that end after it begins and begin before it ends. These follow
    # each other: `counts` of them, from `first_overlap` on.
    first_overlap = np.searchsorted(many_ends, few_starts, side="right")
    counts = np.searchsorted(many_starts, few_ends, side="left") - first_overlap

    # From here on there is one element for each overlap: the index of its row of `few`, and of its row of `many`.
    in_few = np.repeat(np.arange(len(few)), counts)
    overlaps_before = np.cumsum(counts) - counts
    number_in_row = np.arange(len(in_few)) - np.repeat(overlaps_before, counts)
    in_many = first_overlap.take(in_few) + number_in_row
    starts = np.maximum(few_starts.take(in_few), many_starts.take(in_many))
    ends = np.minimum(few_ends.take(in_few), many_ends.take(in_many))
    return _rows(starts, ends)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that the first set holds and the second does not."""
    remaining = intersection(a, complement(b)) if len(a) and len(b) else a
    # Where rows of `b` touch, its complement has an empty row between them.
    return remaining[remaining[:, 1] > remaining[:, 0]]


def length(moments: Intervals) -> int:
    """Return the nanoseconds that a set lasts."""
    return int((moments[:, 1] - moments[:, 0]).sum())


def _rows(starts: Intervals, ends: Intervals) -> Intervals:
    """Return the rows [start, end), all starts side by side in memory, and all ends."""
    return np.stack((starts, ends)).T


class Measure:
    """The length of a set between any two moments, computed in time logarithmic in the size of the set.

    >>> busy = Measure(union([0, 20], [10, 30]))
    >>> busy.between([0, 5], [30, 25]).tolist()
    [20, 10]
    """

    def __init__(self, moments: Intervals) -> None:
        self.moments = moments
        self._starts, self._ends = moments.T
        self._length_before = _length_before(self._ends - self._starts)

    def between(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Return the length of the set within each [start, end)."""
        return self._until(np.asarray(ends, np.int64)) - self._until(np.asarray(starts, np.int64))

    def _until(self, moments: Intervals) -> Intervals:
        """Return the length of the set before each moment."""
        if len(self._starts) == 0:
            return np.zeros(len(moments), np.int64)
        # The last row that has begun may have ended already, or go on after the moment.
        row = np.searchsorted(self._starts, moments, side="right") - 1
        in_row = np.minimum(moments, self._ends[row]) - self._starts[row]
        return np.where(row >= 0, self._length_before[row] + in_row, 0)


class CommonMeasure:
    """The length of what two sets have in common between any two moments, without a list of their intersection.

    Built with one look-up in the larger set for each row of the smaller one.

    >>> gaps, calls = Measure(union([0, 20], [10, 30])), union([5], [25])
    >>> CommonMeasure(gaps, calls).between([0], [22]).tolist()  # 5 to 10, and 20 to 22
    [7]
    """

    def __init__(self, a: Measure, b: Intervals) -> None:
        if len(b) > len(a.moments):
            few, self._many = a.moments, Measure(b)
        else:
            few, self._many = b, a
        self._starts, self._ends = few.T
        self._length_before = _length_before(self._many.between(self._starts, self._ends))

    def between(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Return the length of the common moments within each [start, end)."""
        return self._until(np.asarray(ends, np.int64)) - self._until(np.asarray(starts, np.int64))

    def _until(self, moments: Intervals) -> Intervals:
        """Return the length of the common moments before each moment."""
        if len(self._starts) == 0:
            return np.zeros(len(moments), np.int64)
        row = np.searchsorted(self._starts, moments, side="right") - 1
        row_starts = self._starts[row]
        in_row = self._many.between(row_starts, np.minimum(moments, self._ends[row]))
        return np.where(row >= 0, self._length_before[row] + in_row, 0)


def _length_before(lengths: Intervals) -> Intervals:
    """Return the length of all rows before each row, and of all rows."""
    return np.concatenate(([0], np.cumsum(lengths)))
