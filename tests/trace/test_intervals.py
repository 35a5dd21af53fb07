"""Unions and measures against a count of every moment, one by one."""

import numpy as np

from multicard.trace.intervals import Measure, union
from random_inputs import seeds

END = 40


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
