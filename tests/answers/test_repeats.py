"""Medians, means, ratios and verdicts against counts by hand, closed forms and SciPy's tests."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from multicard.stats.corrections import corrected, holm_adjusted
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool, geometric_mean_interval, pooled, ratio_of
from multicard.stats.samples import ratio_by_block


def bounds(interval: Interval) -> tuple[float | None, float | None]:
    return interval.low, interval.high


def mean_of(values: object) -> Interval | None:
    return Pool([values], logs=False).mean(0)


def blocks(*values: float | None) -> dict[int, float | None]:
    return dict(enumerate(values, start=1))


def test_means_of_one_value_none_or_several() -> None:
    assert mean_of([3.0]) == mean_of({1: 3.0}) == Interval(3.0, None, None, 1)
    for values in ([], [None], [float("nan"), float("inf")]):
        assert mean_of(values) is None
    # What is no number is left out.
    values = [1.0, float("nan"), 3.0, None, float("-inf")]
    found = [mean_of(each) for each in (values, pd.Series([1, None, 3], dtype="Int64"))]
    assert [(each.value, each.repeats) for each in found] == [(2.0, 2)] * 2
    values = [0.2, 0.25, 0.21, 0.3]
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert bounds(mean_of(values)) == pytest.approx((expected.low, expected.high))


def assert_agrees(found: Interval, expected: Any) -> None:
    """P-value and interval are those of a test of logarithms by SciPy."""
    assert found.p_value == pytest.approx(expected.pvalue)
    assert bounds(found) == pytest.approx(tuple(np.exp(expected.confidence_interval())))


def test_a_paired_ratio_is_scipys_paired_test_of_logarithms() -> None:
    one, other = np.random.default_rng(1).lognormal(size=(2, 7))
    found = ratio_of(blocks(*one), blocks(*other))
    assert_agrees(found, stats.ttest_rel(np.log(one), np.log(other)))
    assert found.value == pytest.approx(stats.gmean(one / other))
    assert (found.repeats, found.coverage) == (7, 0.95)
    # Against a limit.
    expected = stats.ttest_rel(np.log(one), np.log(other) + math.log(1.5)).pvalue
    assert ratio_of(blocks(*one), blocks(*other), against=1.5).p_value == pytest.approx(expected)
    assert Pool([blocks(3.0, 3.0), blocks(2.0, 2.0)], exact=True).ratio(0, 1, against=1.5).p_value == 1


def test_a_pooled_ratio_is_the_test_of_the_block_means() -> None:
    logs = np.random.default_rng(3).normal(0.1, 0.2, (5, 2, 4))  # pairs, sides, blocks
    found = pooled([ratio_by_block(blocks(*np.exp(one)), blocks(*np.exp(other))) for one, other in logs])
    assert_agrees(found, stats.ttest_1samp((logs[:, 0] - logs[:, 1]).mean(axis=0), 0))
    assert found.repeats == 4


def test_an_unpaired_ratio_is_scipys_welch_test_of_logarithms() -> None:
    generator = np.random.default_rng(2)
    unequal = [1.0, 2.0, 4.0], [1.0, 1.1, 4.0, 4.0, 2.0]
    for one, other in ((generator.lognormal(size=6), generator.lognormal(0.3, 2, size=6)), unequal):
        found = ratio_of(one, other)
        assert_agrees(found, stats.ttest_ind(np.log(one), np.log(other), equal_var=False))
        assert found.value == pytest.approx(stats.gmean(one) / stats.gmean(other))


def test_blocks_are_paired_by_their_number_whatever_their_order() -> None:
    found = ratio_of({3: 12.0, 1: 2.0, 4: 99.0}, {1: 1.0, 2: 77.0, 3: 6.0})
    assert found.value == pytest.approx(2) and found.repeats == 2
    # Without two blocks in common the sides are not paired.
    one, other = {1: 2.0, 2: 2.2, 3: 2.1}, {3: 1.0, 4: 1.1, 5: 1.3}
    assert ratio_of(one, other) == ratio_of(one.values(), other.values())


def test_a_ratio_has_an_interval_only_if_a_side_has_repeats_and_both_are_above_zero() -> None:
    for values, base in (([2.0], [1.0, 1.1]), ([2.0, 2.1], [1.0]), ([2.0], [1.0])):
        for found in (ratio_of(values, base), ratio_of(blocks(*values), blocks(*base))):
            assert found.value == pytest.approx(stats.gmean(values) / stats.gmean(base))
            assert (found.low is None, found.p_value is None) == (len(values) == len(base),) * 2
    two = [1.0, 2.0]
    for base in ([], [0.0, 1.0], [-1.0, 1.0], [float("nan")]):
        for found in (ratio_of(two, base), ratio_of(base, two), ratio_of(blocks(*two), blocks(*base))):
            assert found is None and verdict(found) == "unknown"


def test_equal_repeats_of_what_is_counted_have_an_interval_without_width_and_others_none() -> None:
    same = [blocks(*[0.1 * 3] * 3), blocks(*[0.3] * 3)]  # 0.30000000000000004 / 0.3
    found = Pool(same, exact=True).ratio(0, 1)
    assert (found.p_value, verdict(found)) == (1.0, "none")
    for sides in ([blocks(2.0, 4.0), blocks(1.0, 2.0)], [[2.0, 2.0], [1.0, 1.0]]):
        double = Pool(sides, exact=True).ratio(0, 1)
        assert bounds(double) == pytest.approx((2, 2)) and verdict(double) == "more"
        assert verdict(Pool(sides).ratio(0, 1)) == "unknown"
    assert bounds(geometric_mean_interval([5.0] * 4)) == (None, None)


def test_holms_p_values_by_hand() -> None:
    # Ordered: 0.005 × 4, 0.01 × 3, 0.03 × 2, 0.04 × 1, none below the one before.
    assert holm_adjusted([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjusted([0.6, 0.7, 0.8]) == [1.0, 1.0, 1.0]
    assert holm_adjusted([None, 0.03, None, 0.02]) == pytest.approx([None, 0.04, None, 0.04])
    assert holm_adjusted([]) == []


def test_a_verdict_on_one_of_many_needs_more() -> None:
    clear, weak, single = (Interval(1.2, 1.1, 1.3, 3, p_value=p) for p in (0.001, 0.03, None))
    assert [verdict(each) for each in (clear, weak, single)] == ["more", "more", "unknown"]
    family = corrected([clear, weak, single, weak])
    assert [verdict(each) for each in family] == ["more", "none", "unknown", "none"]
    assert [bounds(each) for each in family] == [(1.1, 1.3)] * 4
    assert verdict(Interval(0.8, 0.7, 0.9, 3, p_value=0.01)) == "less"


def test_a_ratio_that_is_not_known_stays_so_and_is_none_of_many() -> None:
    ratio = Interval(1.2, 1.1, 1.3, 3, p_value=0.03)
    assert corrected([None, ratio, None]) == [None, ratio, None]


def test_an_infinite_bound_is_no_bound_however_numbers_are_shown() -> None:
    unlimited = Interval(1.25, 0.5, math.inf, 2)
    assert unlimited.texts() == unlimited.texts(lambda value: f"{value:.2f}") == ("1.25", "n=2")


def test_a_pool_without_logarithms_has_no_ratios() -> None:
    pool = Pool([[1.0, 2.0], [2.0, 4.0]], logs=False)
    with pytest.raises(ValueError, match="no ratios"):
        pool.ratio(0, 1)
    with pytest.raises(ValueError, match="no ratios"):
        pool.against_best(0, [1])
