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

# A set of moments, of shape (n, 2).
Intervals = npt.NDArray[np.int64]
# Moments or lengths in nanoseconds, of shape (n,).
Times = npt.NDArray[np.int64]

NOTHING: Intervals = np.empty((0, 2), np.int64)
# First and last moment of the time that a complement covers, in nanoseconds.
FIRST, LAST = -(1 << 62), 1 << 62
ALL_TIME: Intervals = np.array([[FIRST, LAST]], np.int64)


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Return the moments that at least one of the given intervals covers.

    The intervals may overlap, nest, touch, be empty or unordered.

    >>> union([20, 5, 0, 40], [30, 15, 10, 40]).tolist()
    [[0, 15], [20, 30]]
    """
    starts = np.asarray(starts, np.int64)
    ends = np.asarray(ends, np.int64)
    is_real = ends > starts
    if not is_real.all():
        starts = starts[is_real]
        ends = ends[is_real]
    if len(starts) == 0:
        return NOTHING
    is_ordered = (starts[1:] >= starts[:-1]).all()
    if not is_ordered:
        order = np.argsort(starts, kind="stable")
        starts = starts.take(order)
        ends = ends.take(order)
    # The calls of one thread are disjoint already, which is cheaper to check than to merge.
    is_disjoint = (starts[1:] > ends[:-1]).all()
    if is_disjoint:
        return np.array((starts, ends)).T
    moments, _ = merged(starts, ends)
    return moments


def merged(starts: Times, ends: Times) -> tuple[Intervals, npt.NDArray[np.int64]]:
    """Return the union of some intervals, and the index of the interval that opens each row of it.

    The intervals are ordered by start. There is at least one, and none is empty.

    The second interval lies in the first, the third reaches beyond it, and the fourth begins after all of these:

    >>> moments, openers = merged(np.array([0, 5, 9, 20]), np.array([10, 8, 15, 30]))
    >>> moments.tolist(), openers.tolist()
    ([[0, 15], [20, 30]], [0, 3])
    """
    # The moment at which each interval and all intervals before it have ended: in the example 10, 10, 15, 30.
    latest_end = np.maximum.accumulate(ends)
    # An interval opens a new row if it begins after all intervals before it have ended.
    is_after_all = starts[1:] > latest_end[:-1]
    openers = np.flatnonzero(np.append(True, is_after_all))
    # A row lasts until all intervals before the next opener have ended.
    last_of_row = openers[1:] - 1

    # All starts lie side by side in memory, and so do all ends, because this makes later look-ups fast. The mode "clip"
    # saves a copy, and changes nothing, because no index is out of range.
    halves = np.empty((2, len(openers)), np.int64)
    row_starts, row_ends = halves
    starts.take(openers, out=row_starts, mode="clip")
    latest_end.take(last_of_row, out=row_ends[:-1], mode="clip")
    # The last row lasts until all have ended.
    row_ends[-1] = latest_end[-1]
    return halves.T, openers


def together(sets: list[Intervals]) -> Intervals:
    """Return the moments that at least one of some sets holds."""
    rows = np.concatenate([NOTHING, *sets])
    starts, ends = rows.T
    return union(starts, ends)


def complement(moments: Intervals) -> Intervals:
    """Return the moments between `FIRST` and `LAST` that a set does not hold.

    >>> complement(union([0, 20], [10, 30])).tolist() == [[FIRST, 0], [10, 20], [30, LAST]]
    True
    """
    starts, ends = moments.T
    # A gap begins where a row ends, and ends where the next row begins.
    gap_starts = np.append(FIRST, ends)
    gap_ends = np.append(starts, LAST)
    return _rows(gap_starts, gap_ends)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that both sets hold.

    The time is logarithmic in the size of the larger set for each row of the smaller one.

    >>> intersection(union([0, 20], [10, 30]), union([5, 22, 25], [21, 23, 40])).tolist()
    [[5, 10], [20, 21], [22, 23], [25, 30]]
    """
    few, many = sorted((a, b), key=len)
    if not len(few):
        return NOTHING
    few_starts, few_ends = few.T
    many_starts, many_ends = many.T

    # A row of `few` overlaps with the rows of `many` that end after it begins and begin before it ends. These follow
    # each other: `overlap_counts` of them, from `first_overlap` on. In the example, where `few` has the rows 0 to 10
    # and 20 to 30, these are 1 from 0 on, and 3 from 0 on.
    first_overlap = np.searchsorted(many_ends, few_starts, side="right")
    behind_overlaps = np.searchsorted(many_starts, few_ends, side="left")
    overlap_counts = behind_overlaps - first_overlap

    # Every array below has one element for each overlap. `in_few`, `in_many`: the index of its row in both sets; in the
    # example 0, 1, 1, 1 and 0, 0, 1, 2.
    in_few = np.repeat(np.arange(len(few)), overlap_counts)
    overlaps_before_row = np.cumsum(overlap_counts) - overlap_counts
    number_of_first = np.repeat(overlaps_before_row, overlap_counts)
    number_in_row = np.arange(len(in_few)) - number_of_first
    in_many = first_overlap.take(in_few) + number_in_row
    # An overlap begins where the later of its two rows begins, and ends where the earlier one ends.
    starts = np.maximum(few_starts.take(in_few), many_starts.take(in_many))
    ends = np.minimum(few_ends.take(in_few), many_ends.take(in_many))
    return _rows(starts, ends)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the moments that the first set holds and the second does not."""
    remaining = a
    if len(a) and len(b):
        remaining = intersection(a, complement(b))
    # Rows of a set should not touch. But if rows of `b` do, its complement has an empty row between them.
    starts, ends = remaining.T
    return remaining[ends > starts]


def length(moments: Intervals) -> int:
    """Return the nanoseconds that a set lasts."""
    starts, ends = moments.T
    return int((ends - starts).sum())


def _rows(starts: Times, ends: Times) -> Intervals:
    """Return the rows [start, end), all starts side by side in memory, and all ends."""
    return np.stack((starts, ends)).T


class _MeasureByRow:
    """A length between any two moments, computed from the lengths within the rows of a set.

    For each pair of moments, this takes a time that is logarithmic in the number of rows.
    """

    def __init__(self, rows: Intervals) -> None:
        self._starts, self._ends = rows.T
        # For each row the length within all rows before it. The last element is the length within all rows.
        length_of_row = self._length_within(self._starts, self._ends)
        self._length_before = np.append(0, np.cumsum(length_of_row))

    def _length_within(self, starts: Times, ends: Times) -> Times:
        """Return the length within each [start, end). Each of these lies in a single row."""
        raise NotImplementedError

    def between(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Times:
        """Return the length within each [start, end)."""
        until_end = self._until(np.asarray(ends, np.int64))
        until_start = self._until(np.asarray(starts, np.int64))
        return until_end - until_start

    def _until(self, moments: Times) -> Times:
        """Return the length before each moment."""
        if len(self._starts) == 0:
            return np.zeros(len(moments), np.int64)
        # The last row that has begun, -1 if none has. It may have ended already, or go on after the moment.
        row = np.searchsorted(self._starts, moments, side="right") - 1
        row_start = self._starts[row]
        last_in_row = np.minimum(moments, self._ends[row])
        length_in_row = self._length_within(row_start, last_in_row)
        length = self._length_before[row] + length_in_row
        has_row = row >= 0
        return np.where(has_row, length, 0)


class Measure(_MeasureByRow):
    """The length of a set between any two moments.

    >>> busy = Measure(union([0, 20], [10, 30]))
    >>> busy.between([0, 5], [30, 25]).tolist()
    [20, 10]
    """

    def __init__(self, moments: Intervals) -> None:
        self.moments = moments
        super().__init__(moments)

    def _length_within(self, starts: Times, ends: Times) -> Times:
        return ends - starts


class CommonMeasure(_MeasureByRow):
    """The length that two sets have in common between any two moments, without a list of their intersection.

    It is built with one look-up in the larger set for each row of the smaller one.

    The sets have 5 to 10 and 20 to 25 in common, of which 5 to 10 and 20 to 22 lie between 0 and 22:

    >>> gaps, calls = Measure(union([0, 20], [10, 30])), union([5], [25])
    >>> CommonMeasure(gaps, calls).between([0], [22]).tolist()
    [7]
    """

    def __init__(self, a: Measure, b: Intervals) -> None:
        if len(b) > len(a.moments):
            few = a.moments
            self._many = Measure(b)
        else:
            few = b
            self._many = a
        super().__init__(few)

    def _length_within(self, starts: Times, ends: Times) -> Times:
        return self._many.between(starts, ends)
