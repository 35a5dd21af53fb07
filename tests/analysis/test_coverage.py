"""Stated coverage and error rates against simulations whose truth is known."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from multicard.analysis.pooling import pooled_ratio, ratio_of
from multicard.analysis.statistics import Interval, corrected, holm, verdict

pytestmark = pytest.mark.rare

DRAWS = 4000  # the standard error of a coverage of 95% is then 0.34%
FAMILIES = 4000
REPEATS = (2, 3, 10)


def coverage(intervals: list[Interval], truth: float) -> float:
    """Part of some intervals that contains the truth."""
    return float(np.mean([found.low <= truth <= found.high for found in intervals]))


def blocks(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


@pytest.mark.parametrize("repeats", REPEATS)
def test_a_pooled_ratio_has_its_coverage_whatever_configurations_of_a_block_share(repeats: int) -> None:
    generator = np.random.default_rng(20 + repeats)
    truths = np.array([0.8, 1.1, 1.9])
    disturbed = generator.lognormal(0, 0.1, (DRAWS, 1, repeats))  # all with the setting, in a block
    one = disturbed * truths[:, np.newaxis] * generator.lognormal(0, 0.1, (DRAWS, 3, repeats))
    other = generator.lognormal(0, 0.1, (DRAWS, 3, repeats))
    found = [
        pooled_ratio([(blocks(a), blocks(b)) for a, b in zip(of, against, strict=True)])
        for of, against in zip(one, other, strict=True)
    ]
    assert coverage(found, np.exp(np.log(truths).mean())) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize(
    ("counts", "spread", "expected"), [((2, 10), 0.25, 0.954), ((2, 10), 1, 0.899), ((3, 10), 4, 0.935)]
)
def test_sides_with_unequal_repeats_have_the_coverage_of_welchs_interval(
    counts: tuple[int, int], spread: float, expected: float
) -> None:
    # Expected values: 200,000 draws of the interval in SciPy's terms.
    generator = np.random.default_rng(7)
    one, other = (generator.lognormal(0, 0.1 * s, (DRAWS, n)) for n, s in zip(counts, (spread, 1), strict=True))
    found = coverage([ratio_of(*sides) for sides in zip(one, other, strict=True)], 1)
    assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("repeats", REPEATS)
def test_of_thirty_equal_pairs_one_differs_in_at_most_one_family_of_twenty(repeats: int) -> None:
    draws = np.random.default_rng(repeats).lognormal(0, 0.1, (FAMILIES, 30, 2, repeats))
    p_values = ttest_rel(*np.moveaxis(np.log(draws), 2, 0), axis=-1).pvalue
    # SciPy tests all pairs at once. That the ratios have the same p-values is checked on some.
    for family, expected in zip(draws[:10], p_values, strict=False):
        found = [ratio_of(blocks(one), blocks(other)) for one, other in family]
        assert [each.p_value for each in found] == pytest.approx(expected)
        differs = [verdict(each) != "none" for each in corrected(found)]
        assert differs == [p <= 0.05 for p in holm([each.p_value for each in found])]
    wrong = np.mean([min(holm(family)) <= 0.05 for family in p_values.tolist()])
    # Three standard errors of a rate of 5% over so many families are simulation error.
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / FAMILIES)
    # Without the correction nearly all families have one that differs.
    assert np.mean((p_values <= 0.05).any(axis=1)) == pytest.approx(1 - 0.95**30, abs=0.03)
