"""Interval sets against a count of every moment, one by one."""

import numpy as np
import pytest

from multicard.trace.intervals import NOTHING, clip, complement, difference, either, intersection, total, union

END = 40


def moments(pairs: np.ndarray) -> set[int]:
    """Every moment of the intervals, listed."""
    return {moment for start, end in np.asarray(pairs).reshape(-1, 2).tolist() for moment in range(start, end)}


def is_normal(found: np.ndarray) -> bool:
    """Whether rows are ordered, not empty, and apart from each other."""
    return bool((found[:, 1] > found[:, 0]).all() and (found[1:, 0] > found[:-1, 1]).all())


def random_pairs(generator: np.random.Generator) -> np.ndarray:
    """Intervals that overlap, nest, touch, are empty and out of order, as it comes."""
    starts = generator.integers(0, END, generator.integers(0, 9))
    return np.column_stack((starts, np.minimum(END, starts + generator.integers(0, 12, len(starts)))))


def make(pairs: np.ndarray) -> np.ndarray:
    return union(pairs[:, 0], pairs[:, 1])


@pytest.mark.parametrize("seed", range(300))
def test_sets_hold_exactly_the_moments_they_should(seed: int) -> None:
    generator = np.random.default_rng(seed)
    first, second = random_pairs(generator), random_pairs(generator)
    a, b = make(first), make(second)
    one, two = moments(first), moments(second)
    low, high = sorted(generator.integers(0, END, 2).tolist())
    for found, expected in (
        (a, one),
        (intersection(a, b), one & two),
        (either(a, b), one | two),
        (difference(a, b), one - two),
        (complement(a, low, high), set(range(low, high)) - one),
        (clip(a, low, high), one & set(range(low, high))),
    ):
        assert is_normal(found)
        assert moments(found) == expected
        assert total(found) == len(expected)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], []),
        ([(3, 3)], []),
        ([(1, 5), (5, 9)], [(1, 9)]),
        ([(1, 9), (2, 3)], [(1, 9)]),
        ([(7, 8), (1, 2)], [(1, 2), (7, 8)]),
        ([(1, 4), (3, 6), (8, 9)], [(1, 6), (8, 9)]),
    ],
)
def test_a_union_by_hand(pairs: list[tuple[int, int]], expected: list[tuple[int, int]]) -> None:
    starts, ends = [start for start, _ in pairs], [end for _, end in pairs]
    assert union(starts, ends).tolist() == [list(pair) for pair in expected]


def test_touching_sets_do_not_overlap() -> None:
    assert total(intersection(union([0], [5]), union([5], [9]))) == 0


def test_nothing_stays_nothing() -> None:
    assert total(intersection(NOTHING, NOTHING)) == total(either(NOTHING, NOTHING)) == 0
    assert difference(NOTHING, union([0], [5])).shape == (0, 2)
