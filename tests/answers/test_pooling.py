"""Pooled intervals and the best of several against SciPy's tests, closed forms and simulations whose truth is known."""

import numpy as np
import pytest
from scipy.special import polygamma
from scipy.stats import chi2, multivariate_t, ttest_rel
from scipy.stats import f as f_distribution
from scipy.stats import t as student

from multicard.results.configuration import Block
from multicard.stats.corrections import corrected, holm_adjusted
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool, pooled, ratio_of
from multicard.stats.samples import ratio_by_block
from multicard.stats.selection import chosen_among, dunnett_critical_value, studentized_range_p_value
from multicard.stats.variances import prior_of

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
    assert Pool([[], [0.0, 1.0], [1.0, 2.0]]).ratio(1, 2) is None


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
        assert differs == [p <= 0.05 for p in holm_adjusted([each.p_value for each in found])]
    wrong = np.mean([min(holm_adjusted(family)) <= 0.05 for family in p_values.tolist()])
    # Three standard errors of a rate of 5% over so many families are simulation error.
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / FAMILIES)
    # Without the correction nearly all families have one that differs.
    assert np.mean((p_values <= 0.05).any(axis=1)) == pytest.approx(1 - 0.95**30, abs=0.03)


# Groups, selection and outliers ---------------------------------------------------------------------------------------


def block_of(scenario: str, repeat: int) -> Block:
    return Block((scenario,), repeat, scenarios=(scenario,))


def grouped(generator: np.random.Generator, sizes: tuple[int, ...], of_block: float, noise: float) -> list[dict]:
    """Equal configurations of groups that share no block, three repeats each."""
    samples = []
    for group, size in enumerate(sizes):
        effects = generator.normal(0, of_block, 3)
        for _ in range(size):
            values = np.exp(effects + generator.normal(0, noise, 3)).tolist()
            samples.append({block_of(str(group), repeat): value for repeat, value in enumerate(values)})
    return samples


@pytest.mark.parametrize("sizes", [(2, 2), pytest.param((4, 4), marks=pytest.mark.slow), (1, 3)])
def test_configurations_of_groups_without_common_blocks_are_compared_by_what_blocks_scatter(
    sizes: tuple[int, int],
) -> None:
    generator, families = np.random.default_rng(sum(sizes)), 150
    pools = [Pool(grouped(generator, sizes, 0.03, 0.005)) for _ in range(families)]
    across = [pool.ratio(0, sum(sizes) - 1) for pool in pools]
    # Paired by the number of the repeat it was 70 to 84%.
    assert coverage(across, 1) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / families)
    # Two groups of three blocks have two degrees of freedom each, however many configurations ran in them. By Welch's
    # formula their ratio has 2 (1 + r)² / (1 + r²), where r is the ratio of the variances of blocks, by F(2, 2). So
    # in the median the larger variance is 3 times the smaller one, and the degrees of freedom are 3.2. The noise,
    # which is known better, adds a little.
    assert np.median([found.freedom for found in across]) == pytest.approx(3.4, abs=0.4)
    half = np.median([np.log(found.high / found.low) / 2 for found in across])
    assert half == pytest.approx(student.ppf(0.975, 3.2) * 0.03 * np.sqrt(2 / 3), rel=0.25)
    # Within a group blocks cancel.
    inside = [pool.ratio(sum(sizes) - 2, sum(sizes) - 1) for pool in pools]
    assert coverage(inside, 1) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / families)
    assert np.median([np.log(found.high / found.low) / 2 for found in inside]) < 0.03
    wrong = np.mean([beaten(pool, sum(sizes)) for pool in pools])
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / families)


def test_a_mean_has_the_same_interval_whatever_other_scenarios_are_in_the_pool() -> None:
    scenario, other = (
        [{block_of(name, repeat): value for repeat, value in enumerate(values)} for values in samples]
        for name, samples in (("scaling", [(1.0, 1.1, 1.2), (2.0, 2.3, 2.2)]), ("layout", [(5.0, 9.0, 6.0)]))
    )
    alone = Pool(scenario)
    together = Pool([*scenario, *other])
    assert [together.mean(key) for key in (0, 1)] == [alone.mean(key) for key in (0, 1)]
    assert together.ratio(1, 0) == alone.ratio(1, 0)


def test_the_ratio_of_a_sample_to_itself_is_one_for_certain() -> None:
    ratio = Pool([{1: 1.0, 2: 1.3}, {1: 2.0, 2: 2.1}]).ratio(0, 0)
    assert (ratio.value, ratio.low, ratio.high, ratio.repeats) == (1.0, None, None, 2)


def test_a_sample_of_two_scenarios_has_the_scatter_of_the_first_and_a_ratio_that_of_the_common_one() -> None:
    def sample(values: list[float], *scenarios: str) -> dict[Block, float]:
        group = ("scaling", "layout")
        return {Block(group, number, scenarios=scenarios): value for number, value in enumerate(values)}

    shared, of_scaling, of_layout = [1.0, 1.1, 1.2], [2.0, 2.3, 2.2], [5.0, 9.0, 6.0]
    together = Pool([sample(shared, "scaling", "layout"), sample(of_scaling, "scaling"), sample(of_layout, "layout")])
    scaling = Pool([sample(shared, "scaling"), sample(of_scaling, "scaling")])
    layout = Pool([sample(shared, "layout"), sample(of_layout, "layout")])
    assert together.mean(0) == scaling.mean(0)
    assert together.ratio(1, 0) == scaling.ratio(1, 0)
    assert together.mean(2) == layout.mean(1)
    assert together.ratio(2, 0) == layout.ratio(1, 0)
    # Without a common scenario, but in the same blocks: paired, with the variance of each side.
    across = together.ratio(2, 1)
    assert across.repeats == 3 and across.measured is not None
    assert across.low < across.value < across.high


def test_the_best_of_eight_is_shown_where_it_is_better_by_five_standard_errors() -> None:
    # Of three repeats with 1% of scatter the standard error of a ratio is 0.82%. The studentized range of eight with 14
    # degrees of freedom is 4.99 (tables of Harter, 1960), so 3.5 standard errors show a difference, and five do mostly.
    generator, families = np.random.default_rng(3), 60
    samples = np.exp(generator.normal(0, 0.01, (families, 8, 3)))
    samples[:, 0] /= 1.041
    pools = [Pool([blocks(each) for each in family]) for family in samples]
    shown = [any(verdict(ratio) == "more" for ratio in pool.against_best(0, range(1, 8))) for pool in pools]
    assert np.mean(shown) >= 0.9


@pytest.mark.parametrize(
    ("count", "freedom", "quantile"), [(2, 10, 3.15), (3, 10, 3.88), (4, 20, 3.96), (8, 14, 4.99), (10, 60, 4.65)]
)
def test_quantiles_of_the_studentized_range_are_those_of_published_tables(
    count: int, freedom: int, quantile: float
) -> None:
    # H. Leon Harter, Annals of Mathematical Statistics 31(4), 1960: upper 5% points.
    p_value = 2 * student.sf(quantile / np.sqrt(2), freedom)
    assert studentized_range_p_value(p_value, freedom, count) == pytest.approx(0.05, abs=0.0006)


@pytest.mark.parametrize(
    ("count", "freedom", "critical"),
    [(1, 10, 2.23), (2, 10, 2.57), (4, 10, 2.89), (9, 10, 3.24), (2, 20, 2.38), (4, 20, 2.65), (9, 20, 2.95)],
)
def test_critical_values_of_many_to_one_are_those_of_dunnetts_table(
    count: int, freedom: float, critical: float
) -> None:
    # Charles Dunnett, Biometrics 20(3), 1964: two-sided, joint coverage of 95%.
    assert dunnett_critical_value(count, freedom) == pytest.approx(critical, abs=0.006)


@pytest.mark.parametrize(("level", "count"), [(0.95, 4), (0.9, 2)])
def test_a_ratio_that_was_chosen_has_bounds_and_p_value_of_the_multivariate_t_distribution(
    level: float, count: int
) -> None:
    freedom, error = 20, 0.01
    statistic = 2.65
    alone = np.log(1.1) + error * student.ppf((1 + level) / 2, freedom) * np.array([-1, 1])
    p_value = 2 * student.sf(statistic, freedom)
    ratio = Interval(1.1, *np.exp(alone), repeats=3, coverage=level, p_value=p_value, freedom=freedom)
    found = chosen_among(ratio, count)
    # Ratios to one baseline have correlations of a half.
    correlated = multivariate_t(np.zeros(count), (np.eye(count) + 1) / 2, freedom, seed=1)

    def all_within(reach: float) -> float:
        return correlated.cdf(np.full(count, reach), lower_limit=np.full(count, -reach))

    assert found.p_value == pytest.approx(1 - all_within(statistic), abs=2e-4)
    assert all_within(np.log(found.high / 1.1) / error) == pytest.approx(level, abs=2e-4)
    assert (found.value, found.low) == (1.1, pytest.approx(1.1**2 / found.high))


@pytest.mark.parametrize("p_value", [1e-15, 0.9, 1.0])
def test_the_p_value_of_a_chosen_ratio_is_between_that_of_one_and_bonferronis(p_value: float) -> None:
    found = chosen_among(Interval(1.1, 1.0, 1.21, repeats=3, p_value=p_value, freedom=20), 4)
    assert p_value <= found.p_value <= min(1, 4 * p_value)


def test_what_has_no_test_is_the_same_whether_it_was_chosen_or_not() -> None:
    for bounds, p_value, freedom in (((None, None), 0.01, 20), ((1.0, 1.21), None, 20), ((1.0, 1.21), 0.01, None)):
        ratio = Interval(1.1, *bounds, repeats=3, p_value=p_value, freedom=freedom)
        assert chosen_among(ratio, 4) == ratio


@pytest.mark.parametrize(("count", "repeats"), [(20, 3), pytest.param(4, 5, marks=pytest.mark.slow)])
def test_a_speed_up_of_the_best_of_many_is_as_rarely_wrong_as_that_of_one(count: int, repeats: int) -> None:
    generator, families = np.random.default_rng(count), 100
    told, found = 0, []
    for _ in range(families):
        logs = generator.normal(0, SPREAD, (2 * count, repeats)) + generator.normal(0, 0.03, (1, repeats))
        best = int(np.argmax(logs[:count].mean(axis=1)))
        ratio = Pool([blocks(each) for each in np.exp(logs)]).ratio(best, count + best)
        assert chosen_among(ratio, 1) == ratio
        found.append(chosen_among(ratio, count))
        told += verdict(found[-1]) == "more"
    # By the interval of one it is "faster" in 12%, and the coverage is 88%.
    assert told / families <= 0.025 + 3 * np.sqrt(0.025 * 0.975 / families)
    assert coverage(found, 1) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / families)


def test_one_run_in_120_neither_widens_the_others_nor_looks_sure() -> None:
    generator = np.random.default_rng(1)
    logs = generator.normal(0, SPREAD, (40, 3))
    disturbed = logs.copy()
    disturbed[39, 0] += 0.15
    before, after = (Pool([each.tolist() for each in np.exp(of)]) for of in (logs, disturbed))
    widths = [np.log(pool.ratio(0, 1).high / pool.ratio(0, 1).low) for pool in (before, after)]
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
    # The disturbed one has the interval of its own repeats.
    own = after.mean(39)
    alone = Pool([np.exp(disturbed[39]).tolist()]).mean(0)
    assert (own.low, own.high) == pytest.approx((alone.low, alone.high))


def test_degrees_of_freedom_of_the_prior_are_those_of_smyths_equation() -> None:
    # Variances as s₀² F(3, 6) draws them. By Smyth 2004, section 6.2, the variance of their logarithms is the sum of
    # the trigamma functions of 3/2 and 6/2.
    variances = 1e-4 * f_distribution(3, 6).rvs(4000, random_state=np.random.default_rng(2))
    found = prior_of(3 * variances, np.full(4000, 3.0))
    excess = np.var(np.log(variances[found.is_explained]), ddof=1) - polygamma(1, 1.5)
    assert polygamma(1, found.freedom / 2) == pytest.approx(excess, abs=0.02)
    assert found.freedom == pytest.approx(6, rel=0.15) and found.is_explained.mean() > 0.98
    equal = prior_of(3e-4 * chi2(3).rvs(4000, random_state=np.random.default_rng(3)) / 3, np.full(4000, 3.0))
    assert equal.freedom > 50 and equal.variance == pytest.approx(1e-4, rel=0.05)


def test_configurations_beside_show_the_scatter_of_their_scenario_and_have_no_estimates() -> None:
    samples = {"a": {1: 1.0, 2: 1.1}, "b": {1: 2.0, 2: 2.1}, "c": {1: 3.0, 2: 3.5}}
    together = Pool(samples)
    asked_for = {key: samples[key] for key in ("a", "b")}
    beside = Pool(asked_for, beside={"c": samples["c"]})
    assert beside.ratio("b", "a") == together.ratio("b", "a") != Pool(asked_for).ratio("b", "a")
    assert beside.mean("a") == together.mean("a")
