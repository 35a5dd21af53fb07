"""Timelines, unions and measures of intervals against a count of every moment, one by one."""

import numpy as np

from multicard.trace.device_times import COMMUNICATION, COMPUTE, GRAPH, MEMORY, MIGRATION, SHARES, Device
from multicard.trace.intervals import NOTHING, CommonMeasure, Measure, complement, difference, intersection, union
from random_inputs import seeds

END = 60


def random_device(seed: int) -> tuple[np.ndarray, ...]:
    """Start, end and kind of events that overlap, nest, touch, are empty, out of order and begin together."""
    generator = np.random.default_rng(seed)
    n = generator.integers(1, 12)
    start = generator.integers(5, END, n)
    end = np.minimum(END, start + generator.integers(0, 8, n))
    kinds = [COMPUTE, COMMUNICATION, MEMORY, MIGRATION, GRAPH] if seed % 2 else [COMPUTE, COMMUNICATION, MEMORY]
    return start, end, generator.choice(kinds, n)


def counted(start: np.ndarray, end: np.ndarray, kind: np.ndarray, a: int, b: int) -> dict[str, int]:
    """Every share, moment by moment."""
    events = list(zip(start.tolist(), end.tolist(), kind.tolist(), strict=True))
    counts = dict.fromkeys(SHARES, 0)
    for moment in range(a, b):
        at_work = {what for first, last, what in events if first <= moment < last}
        may_compute = bool({COMPUTE, GRAPH} & at_work)
        counts["span"] += 1
        counts["busy"] += bool(at_work)
        counts["compute"] += COMPUTE in at_work
        counts["communication"] += COMMUNICATION in at_work
        counts["memory"] += bool({MEMORY, MIGRATION} & at_work)
        counts["graphs"] += GRAPH in at_work and COMPUTE not in at_work
        counts["overlapped"] += {COMPUTE, COMMUNICATION} <= at_work
        counts["exposed_communication"] += COMMUNICATION in at_work and not may_compute
        counts["idle"] += not at_work
    return counts


@seeds(100, 900)
def test_every_moment_is_counted_where_it_belongs(seed: int) -> None:
    device = random_device(seed)
    starts, ends = np.sort(np.random.default_rng(seed).integers(0, END + 10, (2, 4)), axis=0)
    found = Device(*device).between(starts, ends).nanoseconds
    for i, (a, b) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        assert {name: found[name][i] for name in SHARES} == counted(*device, a, b)


def moments(pairs: np.ndarray) -> set[int]:
    """Every moment of the intervals, listed."""
    return {moment for start, end in np.asarray(pairs).reshape(-1, 2).tolist() for moment in range(start, end)}


def random_pairs(generator: np.random.Generator) -> np.ndarray:
    """Intervals that overlap, nest, touch, are empty and out of order, as it comes."""
    starts = generator.integers(0, END, generator.integers(0, 9))
    return np.column_stack((starts, np.minimum(END, starts + generator.integers(0, 12, len(starts)))))


@seeds(50, 900)
def test_a_union_holds_exactly_the_moments_it_should(seed: int) -> None:
    pairs = random_pairs(np.random.default_rng(seed))
    found = union(pairs[:, 0], pairs[:, 1])
    assert (found[:, 1] > found[:, 0]).all()
    assert (found[1:, 0] > found[:-1, 1]).all(), "rows are in order of time, neither overlapping nor touching"
    assert moments(found) == moments(pairs)


@seeds(50, 450)
def test_a_measure_counts_the_moments_between_two(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pairs = random_pairs(generator)
    starts, ends = np.sort(generator.integers(-5, END + 5, (2, 20)), axis=0)
    found = Measure(union(pairs[:, 0], pairs[:, 1])).between(starts, ends)
    inside = moments(pairs)
    assert found.tolist() == [len(inside & set(range(start, end))) for start, end in zip(starts, ends, strict=True)]


@seeds(50, 450)
def test_sets_of_moments_are_combined_as_sets(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = (union(*random_pairs(generator).T) for _ in range(2))
    assert moments(intersection(a, b)) == moments(a) & moments(b)
    assert moments(difference(a, b)) == moments(a) - moments(b)
    starts, ends = np.sort(generator.integers(-5, END + 5, (2, 20)), axis=0)
    common = moments(a) & moments(b)
    expected = [len(common & set(range(start, end))) for start, end in zip(starts, ends, strict=True)]
    assert CommonMeasure(Measure(a), b).between(starts, ends).tolist() == expected
    assert CommonMeasure(Measure(b), a).between(starts, ends).tolist() == expected
    assert len(difference(a, complement(NOTHING))) == 0
