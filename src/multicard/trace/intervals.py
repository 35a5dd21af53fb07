"""Sets of moments as arrays of disjoint intervals: what sums over streams cannot tell.

A set is an int64 array of shape (n, 2), rows [start, end) in order of time, neither overlapping nor touching, none
empty. All functions run in O(n log n) or better and never loop over intervals in Python.
"""

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

NOTHING: Intervals = np.empty((0, 2), np.int64)


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
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    firsts = np.flatnonzero(opens)
    lasts = np.append(firsts[1:] - 1, len(starts) - 1)
    return np.column_stack((starts[firsts], reach[lasts]))


def total(moments: Intervals) -> int:
    """Length of a set."""
    return int((moments[:, 1] - moments[:, 0]).sum())


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Moments in both sets."""
    return _covered(a, b, depth=2)


def either(a: Intervals, b: Intervals) -> Intervals:
    """Moments in at least one of two sets."""
    both = np.concatenate((a, b))
    return union(both[:, 0], both[:, 1])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Moments in `a` that are not in `b`."""
    if len(a) == 0:
        return NOTHING
    return intersection(a, complement(b, int(a[0, 0]), int(a[-1, 1])))


def complement(moments: Intervals, start: int, end: int) -> Intervals:
    """Moments of [start, end) that are not in the set."""
    edges = np.concatenate(([start], np.clip(moments, start, end).ravel(), [end])).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def clip(moments: Intervals, start: int, end: int) -> Intervals:
    """The part of a set within [start, end)."""
    inside = np.clip(moments, start, end)
    return inside[inside[:, 1] > inside[:, 0]]


def _covered(a: Intervals, b: Intervals, depth: int) -> Intervals:
    """Moments that `depth` of the two sets cover, by counting how many are open at each edge."""
    edges = np.concatenate((a.ravel(), b.ravel()))
    if len(edges) == 0:
        return NOTHING
    change = np.tile(np.array([1, -1], np.int8), len(edges) // 2)
    # At equal times ends come before starts, so touching sets do not overlap.
    order = np.lexsort((change, edges))
    edges, depths = edges[order], np.cumsum(change[order])
    at = np.flatnonzero(depths == depth)
    return np.column_stack((edges[at], edges[at + 1]))
