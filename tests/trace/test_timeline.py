"""Timelines, unions and measures of intervals against a count of every moment, one by one."""

import numpy as np

from multicard.trace.intervals import Measure, union
from multicard.trace.launches import UNKNOWN
from multicard.trace.timeline import CAUSES, COMMUNICATION, COMPUTE, MEMORY, SHARES, Device
from random_inputs import seeds

END = 60


def random_device(seed: int) -> tuple[np.ndarray, ...]:
    """Events that overlap, nest, touch, are empty, out of order and begin together; some without a recorded call."""
    generator = np.random.default_rng(seed)
    n = generator.integers(1, 12)
    start = generator.integers(5, END, n)
    end = np.minimum(END, start + generator.integers(0, 8, n))
    kind = generator.choice([COMPUTE, COMMUNICATION, MEMORY], n)
    call = np.where(generator.random(n) < 0.2, UNKNOWN, start - generator.integers(0, 20, n))
    return start, end, kind, call


def counted(
    start: np.ndarray, end: np.ndarray, kind: np.ndarray, call: np.ndarray, a: int, b: int, away: np.ndarray
) -> dict[str, int]:
    """Every share and cause, moment by moment."""
    events = [e for e in zip(start.tolist(), end.tolist(), kind.tolist(), call.tolist(), strict=True) if e[1] > e[0]]
    counts = dict.fromkeys((*SHARES, *CAUSES), 0)
    for moment in range(a, b):
        at_work = {what for first, last, what, _ in events if first <= moment < last}
        counts["span"] += 1
        counts["busy"] += bool(at_work)
        counts["compute"] += COMPUTE in at_work
        counts["communication"] += COMMUNICATION in at_work
        counts["memory"] += MEMORY in at_work
        counts["overlapped"] += {COMPUTE, COMMUNICATION} <= at_work
        counts["exposed_communication"] += COMMUNICATION in at_work and COMPUTE not in at_work
        if not at_work:
            counts["idle"] += 1
            idle_since = max((last for _, last, _, _ in events if last <= moment), default=-(10**9))
            following = min(((f, c, w) for f, _, w, c in events if f > moment), default=None)
            if following and following[1] != UNKNOWN and following[1] >= idle_since:
                elsewhere = any(first <= moment < last for first, last in away.tolist())
                counts["idle_host_elsewhere" if elsewhere else "idle_host_bound"] += 1
            elif following and following[1] != UNKNOWN and following[2] == COMMUNICATION:
                counts["idle_collective"] += 1
            else:
                counts["idle_other"] += 1
    return counts


def tied(start: np.ndarray, end: np.ndarray, kind: np.ndarray, call: np.ndarray) -> bool:
    """Whether two events of different kinds begin and were launched together, so that either may count as first."""
    first = [(s, c) for s, e, c in zip(start.tolist(), end.tolist(), call.tolist(), strict=True) if e > s]
    return len(set(first)) < len(first)


@seeds(100, 900)
def test_every_moment_is_counted_where_it_belongs(seed: int) -> None:
    device = random_device(seed)
    if tied(*device):
        return
    generator = np.random.default_rng(seed)
    starts, ends = np.sort(generator.integers(0, END + 10, (2, 4)), axis=0)
    away = np.unique(generator.integers(0, END, 6))
    away = away[: len(away) // 2 * 2].reshape(-1, 2)
    found = Device(*device).between(starts, ends, away)
    for i, (a, b) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        assert {name: found[name][i] for name in found} == counted(*device, a, b, away)


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
