"""Medians, ratios and verdicts against counts by hand, scipy, and synthetic data of known truth."""

from itertools import pairwise, product
from math import comb

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from multicard.analysis import statistics
from multicard.analysis.statistics import Interval, median_of, medians_of, ratio_of, ratios_of, verdict


def bounds(interval: Interval) -> tuple[float | None, float | None]:
    return interval.low, interval.high


def drawn_again(values: list[float]) -> np.ndarray:
    """Medians of all resamples of a few values, each of which is as likely."""
    return np.median(list(product(values, repeat=len(values))), axis=1)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_the_interval_of_up_to_five_repeats_is_their_range(count: int) -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0][:count]
    found = median_of(values)
    assert found == Interval(float(np.median(values)), values[0], values[-1], count)
    # The outermost medians have more than 2.5 % of all resamples each, which are as likely.
    assert np.mean(drawn_again(values) == values[0]) == np.mean(drawn_again(values) == values[-1]) > 0.025
    other = bootstrap((values,), np.median, method="percentile", rng=8).confidence_interval
    assert bounds(found) == (other.low, other.high)


def test_the_interval_of_six_repeats_is_that_of_all_their_resamples() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    exact = np.percentile(drawn_again(values), [2.5, 97.5])
    assert bounds(median_of(values)) == pytest.approx(tuple(exact))
    assert exact[0] > values[0]


def test_the_interval_of_many_repeats_agrees_with_scipy_and_with_order_statistics() -> None:
    values = np.random.default_rng(1).normal(10, 1, 101)
    found = median_of(values)
    other = bootstrap((values,), np.median, method="percentile", n_resamples=20000, rng=7).confidence_interval
    assert bounds(found) == pytest.approx((other.low, other.high), abs=0.03)
    # Binomial: 51 ± 1.96 √(101 / 4) are the ranks 41 and 61.
    assert bounds(found) == pytest.approx(tuple(np.sort(values)[[40, 60]]), abs=0.05)


def test_a_range_holds_the_true_median_as_often_as_coins_say() -> None:
    draws = np.random.default_rng(2).normal(0, 1, (4000, 3))
    inside = [interval.low <= 0 <= interval.high for interval in medians_of(draws)]
    assert np.mean(inside) == pytest.approx(1 - 2 * 0.5**3, abs=0.02)


def test_one_value_has_no_bounds() -> None:
    assert median_of([3.0]) == Interval(3.0, None, None, 1)


@pytest.mark.parametrize("values", [[], [None], [float("nan"), float("inf")]])
def test_nothing_known_is_no_value(values: list[float | None]) -> None:
    assert median_of(values) == Interval(None, None, None, 0, left_out=len(values))


def test_what_is_no_number_is_left_out_and_counted() -> None:
    values = [1.0, float("nan"), 3.0, None, float("-inf")]
    assert median_of(values) == Interval(2.0, 1.0, 3.0, 2, left_out=3)
    assert median_of(pd.Series([1, None, 3], dtype="Int64")) == Interval(2.0, 1.0, 3.0, 2, left_out=1)


def test_equal_values_have_an_interval_without_width() -> None:
    assert median_of([5.0] * 4) == Interval(5.0, 5.0, 5.0, 4)
    assert verdict(ratio_of([0.1 * 3] * 3, [0.3] * 3)) == "none"  # 0.30000000000000004 / 0.3
    assert verdict(ratio_of([2.0] * 3, [1.0] * 3)) == "more"


def test_the_bounds_of_a_ratio_of_few_are_its_extremes() -> None:
    one, other = [6.0, 8.0, 10.0], [2.0, 4.0, 2.5]
    assert ratio_of(one, other) == Interval(8 / 2.5, 6 / 4, 10 / 2, 3)
    ratios = np.divide.outer(drawn_again(one), drawn_again(other)).ravel()
    assert np.percentile(ratios, [2.5, 97.5]).tolist() == [6 / 4, 10 / 2]
    ratios = np.divide.outer(drawn_again(one[:2]), drawn_again(other)).ravel()
    assert bounds(ratio_of(one[:2], other)) == pytest.approx(tuple(np.percentile(ratios, [2.5, 97.5])))


def test_the_bounds_of_a_ratio_agree_with_all_pairs_of_resamples() -> None:
    one, other = [4.0, 5.0, 7.0, 9.0, 10.0], [2.0, 2.5, 3.0, 4.5]
    ratios = np.divide.outer(drawn_again(one), drawn_again(other)).ravel()
    exact = np.percentile(ratios, [2.5, 97.5])
    assert bounds(ratio_of(one, other)) == pytest.approx(tuple(exact), rel=0.03)


def test_a_ratio_of_negative_values_keeps_its_bounds_in_order() -> None:
    assert ratio_of([-1.0, 2.0], [1.0, 2.0]) == Interval(0.5 / 1.5, -1.0, 2.0, 2)


@pytest.mark.parametrize(("values", "base"), [([2.0], [1.0, 1.1]), ([2.0, 2.1], [1.0]), ([2.0], [1.0])])
def test_a_ratio_has_bounds_only_if_both_sides_have_repeats(values: list[float], base: list[float]) -> None:
    found = ratio_of(values, base)
    assert found.value == pytest.approx(np.median(values) / np.median(base))
    assert bounds(found) == (None, None)
    assert verdict(found) == "unknown"


@pytest.mark.parametrize("base", [[], [0.0, 1.0, 2.0], [-1.0, 1.0], [float("nan")]])
def test_a_ratio_to_nothing_or_zero_is_unknown(base: list[float]) -> None:
    found = ratio_of([1.0, 2.0], base)
    assert (found.value, *bounds(found)) == (None, None, None)
    assert verdict(found) == "unknown"


def test_what_a_ratio_leaves_out_counts_on_both_sides() -> None:
    found = ratio_of([1.0, None, 3.0], [float("nan"), 1.0, 1.0, 1.0])
    assert (found.repeats, found.left_out) == (2, 2)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(1.01, 1.2, "more"), (0.8, 0.99, "less"), (0.9, 1.1, "none"), (1.0, 1.2, "none"), (0.9, 1.0, "none")],
)
def test_a_difference_inside_the_interval_is_none(low: float, high: float, word: str) -> None:
    assert verdict(Interval(1.1, low, high, 3)) == word


def test_bounds_do_not_depend_on_what_else_is_asked() -> None:
    generator = np.random.default_rng(3)
    groups = [generator.lognormal(size=size) for size in (7, 9, 7, 2, 9, 7)]
    assert medians_of(groups) == [median_of(group) for group in groups] == medians_of(groups[::-1])[::-1]
    pairs = list(pairwise(groups))
    assert ratios_of(pairs) == [ratio_of(*pair) for pair in pairs]


def test_groups_of_a_size_are_drawn_again_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(statistics, "bootstrap", lambda *a, **k: calls.append(1) or bootstrap(*a, **k))
    medians_of([np.arange(6.0)] * 50 + [np.arange(7.0)] * 50 + [np.arange(3.0)] * 50)
    assert len(calls) == 2


@pytest.mark.parametrize(("truth", "word"), [(1.5, "more"), (0.6, "less")])
def test_a_true_difference_beyond_the_noise_is_found(truth: float, word: str) -> None:
    generator = np.random.default_rng(4)
    pairs = [(truth * generator.normal(1, 0.05, 3), generator.normal(1, 0.05, 3)) for _ in range(200)]
    assert {verdict(ratio) for ratio in ratios_of(pairs)} == {word}


@pytest.mark.parametrize("repeats", [2, 3])
def test_equals_are_told_apart_by_chance_as_often_as_documented(repeats: int) -> None:
    pairs = np.random.default_rng(5).normal(10, 1, (3000, 2, repeats))
    verdicts = [verdict(ratio) for ratio in ratios_of(pairs)]
    # All of one side over all of the other: 2 of the orders in which they can come.
    expected = 2 / comb(2 * repeats, repeats)
    assert 1 - verdicts.count("none") / len(verdicts) == pytest.approx(expected, abs=0.025)
    assert verdicts.count("more") == pytest.approx(verdicts.count("less"), rel=0.25)


def test_equals_with_many_repeats_are_rarely_told_apart() -> None:
    pairs = np.random.default_rng(6).normal(10, 1, (300, 2, 15))
    found = [verdict(ratio) for ratio in ratios_of(pairs)]
    assert found.count("none") / len(found) > 0.93
