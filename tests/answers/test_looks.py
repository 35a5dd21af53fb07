"""Intervals that hold at whichever look the last repeat was added: against simulation with known truth, and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from multicard.results.configuration import Block
from multicard.stats.interval import Interval
from multicard.stats.looks import critical_p_value, level_of_look, p_value_of_look
from multicard.stats.pool import Pool


def share_below(limit: float, looks: int, seed: int, sequences: int = 20_000) -> float:
    """How many sequences of equal configurations have a p-value below a limit at any look, by SciPy's test."""
    differences = np.random.default_rng(seed).normal(size=(sequences, looks + 1))
    found = np.zeros(sequences, bool)
    for repeats in range(2, looks + 2):
        found |= stats.ttest_1samp(differences[:, :repeats], 0, axis=1).pvalue <= limit
    return float(found.mean())


@pytest.mark.parametrize("looks", [2, 4, 9])
def test_any_look_finds_a_difference_that_does_not_exist_with_five_percent(looks: int) -> None:
    # Four standard errors of 20 000 sequences, and of the 100 000 by which the limit is found.
    tolerance = 4 * math.sqrt(0.05 * 0.95 * (1 / 20_000 + 1 / 100_000))
    assert share_below(critical_p_value(looks), looks, seed=7) == pytest.approx(0.05, abs=tolerance)
    # Without the correction it is far more.
    assert share_below(0.05, looks, seed=8) > 0.05 + tolerance


def test_the_limit_lies_between_bonferronis_and_that_of_one_look_and_falls_with_the_looks() -> None:
    limits = [critical_p_value(looks) for looks in (1, 2, 4, 9)]
    assert limits == sorted(limits, reverse=True)
    assert all(0.05 / looks < critical_p_value(looks) < 0.05 for looks in (2, 4, 9))
    assert critical_p_value(1) == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 100_000))
    # Of one look there is nothing to correct.
    assert (level_of_look(1), level_of_look(1, 0.9), p_value_of_look(0.2, 1)) == (0.95, 0.9, 0.2)


def test_a_corrected_p_value_is_at_most_five_percent_where_the_interval_excludes_the_hypothesis() -> None:
    limit = critical_p_value(9)
    assert p_value_of_look(limit, 9) == pytest.approx(0.05) and p_value_of_look(limit * 1.01, 9) > 0.05
    p_values = [p_value_of_look(p, 9) for p in (1e-6, 1e-4, 0.004, limit, 0.02, 0.2, 0.9)]
    assert p_values == sorted(p_values) and p_values[-1] == 1
    # Small values, which corrections for several comparisons need, are Bonferroni's.
    assert p_values[:2] == pytest.approx([9e-6, 9e-4])


def ratio(logs: np.ndarray, looks: int) -> Interval:
    samples = [{Block(("a",), number, looks): math.exp(log) for number, log in enumerate(side)} for side in logs]
    found = Pool(samples).ratio(0, 1)
    assert found is not None
    return found


def test_a_pool_takes_the_looks_from_the_blocks() -> None:
    logs = np.random.default_rng(3).normal(size=(2, 6))
    test = stats.ttest_rel(*logs)
    found = ratio(logs, looks=9)
    expected = test.confidence_interval(level_of_look(9))
    assert (found.low, found.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert found.p_value == pytest.approx(p_value_of_look(test.pvalue, 9))
    # It is an interval of 95% of the repeats as they were added.
    assert found.coverage == 0.95
    alone = ratio(logs, looks=1)
    assert alone.low is not None and found.low is not None and found.low < alone.low < alone.value == found.value


def test_blocks_of_scenarios_with_and_without_looks_are_paired() -> None:
    assert Block(("a",), 1, 9) == Block(("a",), 1) and len({Block(("a",), 1, 9), Block(("a",), 1)}) == 1
    sides = [{Block(("a",), n, looks): 1.0 + n for n in range(3)} for looks in (9, 1)]
    assert Pool(sides).ratio(0, 1).repeats == 3
