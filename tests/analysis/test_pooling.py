"""Pooled intervals and the best of several against SciPy's tests, closed forms and simulations whose truth is known."""

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_rel

from multicard.analysis.pooling import Pool, pooled, ratio_of
from multicard.analysis.statistics import Interval, corrected, holm, ratio_by_block, verdict

SPREAD = 0.01
DRAWS = 4000  # the standard error of a coverage of 95% is then 0.34%
FAMILIES = 4000
REPEATS = (2, 3, 10)


def blocks(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(values.tolist()))


def pool_of(generator: np.random.Generator, size: tuple[int, int], spread: object = SPREAD, drift: float = 0.0) -> Pool:
    """Equal configurations in blocks that drift."""
    logs = generator.normal(0, 1, size) * np.broadcast_to(spread, size[0])[:, None]
    return Pool([blocks(each) for each in np.exp(logs + generator.normal(0, drift, (1, size[1])))])


def coverage(intervals: list[Interval], truth: float) -> float:
    """Part of some intervals that contains the truth."""
    return float(np.mean([found.low <= truth <= found.high for found in intervals]))


def beaten(pool: Pool, count: int) -> bool:
    """Whether the best of equals is said to be better than another."""
    means = [pool.mean(index).value for index in range(count)]
    best = int(np.argmin(means))
    ratios = pool.against_best(best, [index for index in range(count) if index != best])
    return any(verdict(ratio) == "more" for ratio in ratios)


def test_what_two_repeats_show_is_told_by_the_scatter_of_all_configurations() -> None:
    # 55.7 against 39.3 ms, repeats 5% apart: alone, a t test with one degree of freedom cannot tell.
    times = [[54.3, 57.1], [40.5, 38.1]]
    others = [[50.0 + n, 51.0 + n + 3 * (-1) ** n] for n in range(6)]
    alone = ratio_of(*(blocks(np.array(each)) for each in times))
    pooled = Pool([blocks(np.array(each)) for each in times + others]).ratio(0, 1)
    assert (verdict(alone), verdict(pooled)) == ("none", "more")
    assert pooled.value == pytest.approx(alone.value)


def test_single_repeats_of_both_sides_have_no_interval_whatever_others_scatter() -> None:
    pool = Pool([{1: 1.0}, {1: 2.0}, {1: 2.0, 2: 2.1}, {1: 3.0, 2: 3.1}])
    assert pool.mean(0).low is None and pool.ratio(0, 1).p_value is None
    assert Pool([[], [0.0, 1.0], [1.0, 2.0]]).ratio(1, 2).value is None


def test_a_baseline_of_one_repeat_is_compared_with_all_of_the_other_side() -> None:
    found = Pool([{1: 1.0}, {1: 2.2, 2: 2.0, 3: 1.8}]).ratio(1, 0)
    logs = np.log([2.2, 2.0, 1.8])
    # Student's interval of two samples with equal variances, of which one value tells nothing.
    reach = student.ppf(0.975, 2) * np.std(logs, ddof=1) * np.sqrt(1 + 1 / 3)
    assert found.value == pytest.approx((2.2 * 2.0 * 1.8) ** (1 / 3)) == pytest.approx(1.993, abs=5e-4)
    assert [found.low, found.high] == pytest.approx(np.exp([logs.mean() - reach, logs.mean() + reach]).tolist())
    assert found.format() == "1.99 (95% CI 1.21 to 3.28, n=3 and 1)"
    # Of 2 and 3 repeats those without a partner are left out, and that is said.
    pair = Pool([{1: 1.0, 2: 1.1}, {1: 2.0, 2: 2.1, 3: 9.0}]).ratio(1, 0)
    assert pair.value == pytest.approx((2.0 * 2.1 / 1.1) ** 0.5) and pair.format().endswith("n=2 of 3)")


def test_equal_repeats_have_no_interval_but_that_of_others_scatter() -> None:
    for pool in (Pool([{1: 1.0, 2: 1.0}, {1: 1.9, 2: 1.9}]), Pool([[1.0, 1.0], [1.9, 1.9]])):
        found = pool.ratio(1, 0)
        assert (found.value, found.low, found.p_value, verdict(found)) == (1.9, None, None, "unknown")
        assert found.format() == "1.90 (n=2, equal to the last digit)"
        assert pool.mean(1).low is None
    others = [[3.0, 3.1], [5.0, 5.2], [7.0, 7.1]]
    among = Pool([[1.0, 1.0], [1.9, 1.9], *others]).ratio(1, 0)
    # The others have 3 degrees of freedom, or fewer as far as their variances differ.
    least = 2 * student.ppf(0.975, 3) * np.sqrt(np.mean([np.var(np.log(each), ddof=1) for each in others]))
    assert least <= np.log(among.high / among.low) < 2 * least


def test_equal_repeats_keep_their_digits() -> None:
    values = [8e9 / n for n in range(1, 50)]  # of some the exponential of the logarithm is another number
    for exact in (False, True):
        pool = Pool([{1: value, 2: value} for value in values], exact=exact)
        found = [pool.mean(index) for index in range(len(values))]
        assert [each.value for each in found] == values
        assert [each.low for each in found] == (values if exact else [None] * len(values))


@pytest.mark.parametrize(
    ("count", "repeats", "families"),
    [
        pytest.param(8, 3, 100, marks=pytest.mark.slow),
        pytest.param(8, 2, 600, marks=pytest.mark.rare),
        pytest.param(32, 3, 150, marks=pytest.mark.rare),
    ],
)
def test_the_best_of_equals_beats_another_in_at_most_one_family_of_twenty(
    count: int, repeats: int, families: int
) -> None:
    generator = np.random.default_rng(count + repeats)
    wrong = np.mean([beaten(pool_of(generator, (count, repeats), drift=0.05), count) for _ in range(families)])
    assert wrong <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / families)


@pytest.mark.rare
@pytest.mark.parametrize(("repeats", "most"), [(3, 0.11), (10, 0.05)])
def test_one_that_scatters_most_is_taken_for_the_best_as_rarely_as_the_module_says(repeats: int, most: float) -> None:
    generator, spread = np.random.default_rng(repeats), SPREAD * np.array([10] + 7 * [1])
    wrong = np.mean([beaten(pool_of(generator, (8, repeats), spread), 8) for _ in range(600)])
    assert wrong <= most + 2 * np.sqrt(most * (1 - most) / 600)


@pytest.mark.parametrize(
    ("repeats", "drift"),
    [
        pytest.param(3, 0.05, marks=pytest.mark.slow),
        pytest.param(2, 0.0, marks=pytest.mark.rare),
        pytest.param(5, 0.05, marks=pytest.mark.rare),
    ],
)
def test_pooled_intervals_cover_the_truth(repeats: int, drift: float) -> None:
    generator = np.random.default_rng(repeats)
    pools = [pool_of(generator, (8, repeats), drift=drift) for _ in range(400)]
    for found in ([pool.ratio(0, 1) for pool in pools], [pool.mean(0) for pool in pools]):
        assert coverage(found, 1) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / len(pools))
    alone = [ratio_of(*np.exp(generator.normal(0, SPREAD, (2, repeats)))) for _ in range(200)]
    widths = [np.median([each.high - each.low for each in of]) for of in (alone, [p.ratio(0, 1) for p in pools])]
    assert widths[1] < widths[0]


@pytest.mark.rare
@pytest.mark.parametrize("repeats", REPEATS)
def test_a_pooled_ratio_has_its_coverage_whatever_configurations_of_a_block_share(repeats: int) -> None:
    generator = np.random.default_rng(20 + repeats)
    truths = np.array([0.8, 1.1, 1.9])
    disturbed = generator.lognormal(0, 0.1, (DRAWS, 1, repeats))  # all with the setting, in a block
    one = disturbed * truths[:, np.newaxis] * generator.lognormal(0, 0.1, (DRAWS, 3, repeats))
    other = generator.lognormal(0, 0.1, (DRAWS, 3, repeats))
    found = [
        pooled([ratio_by_block(blocks(a), blocks(b)) for a, b in zip(of, against, strict=True)])
        for of, against in zip(one, other, strict=True)
    ]
    assert coverage(found, np.exp(np.log(truths).mean())) == pytest.approx(0.95, abs=0.01)


@pytest.mark.rare
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


@pytest.mark.rare
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
