"""Pooled numbers of claims: how often chance decides, and that a larger matrix tells more, by simulation."""

import math

import numpy as np
import pytest

from multicard.papers.claim_tests import AccuracyReached, ClaimTest, Compared
from multicard.papers.compared_numbers import ComparedNumber, same_blocks
from multicard.papers.verdicts import NOT_MEASURED, TestResult, Verdict, judge_together
from multicard.stats.corrections import holm_levels


def gain(above: float = -math.inf, below: float = math.inf, measure: str = "throughput_samples_per_s") -> Compared:
    return Compared(
        statement="It is faster.", where={}, variant={"layout": "nhwc"}, baseline={"layout": "nchw"},
        measure=measure, above=above, below=below,
    )  # fmt: skip


def comparison(*numbers: float) -> ComparedNumber:
    return ComparedNumber(dict(enumerate(numbers, 1)), ())


def matrix(rng: np.random.Generator, gains: list[float], blocks: int, noise: float) -> list[ComparedNumber]:
    """A comparison per configuration; those of a block share half of the variance."""
    shared = rng.normal(0, noise / math.sqrt(2), blocks)
    return [
        comparison(*(each * np.exp(shared + rng.normal(0, noise / math.sqrt(2), blocks))).tolist()) for each in gains
    ]


def judged(tests: list[tuple[ClaimTest, list[ComparedNumber]]]) -> list[TestResult]:
    return judge_together([TestResult(test, comparisons) for test, comparisons in tests])


def decided(tests: list[tuple[ClaimTest, list[ComparedNumber]]]) -> list[Verdict]:
    return [result.verdict for result in judged(tests)]


@pytest.mark.slow
@pytest.mark.parametrize(("blocks", "tests"), [(3, 1), (6, 4)])
def test_in_five_of_a_hundred_families_at_most_chance_decides_a_test_whose_number_is_at_the_limit(
    blocks: int, tests: int
) -> None:
    rng = np.random.default_rng(20261122)
    families = 400
    wrong = sum(
        any(
            verdict != "not decided"
            for verdict in decided([(gain(above=1.1), matrix(rng, [1.0, 1.21], blocks, 0.05)) for _ in range(tests)])
        )
        for _ in range(families)
    )
    # Five per cent, and four standard errors of a share of so many families.
    assert wrong / families < 0.05 + 4 * math.sqrt(0.05 * 0.95 / families)
    if tests == 1:
        assert wrong / families > 0.05 - 4 * math.sqrt(0.05 * 0.95 / families)


@pytest.mark.parametrize(
    ("test", "numbers", "verdict"),
    [
        (gain(above=1.16, below=1.30), (1.20, 1.21, 1.22), "confirmed"),
        (gain(above=1.16, below=1.30), (1.10, 1.11, 1.12), "refuted"),
        (gain(above=1.16, below=1.30), (1.40, 1.41, 1.42), "refuted"),
        (gain(above=1.16), (1.10, 1.25, 1.40), "not decided"),
        (gain(below=1.30), (1.10, 1.25, 1.40), "not decided"),
        (gain(above=1.16), (1.20,), "not decided"),
        (gain(below=1.0), (0.9, 0.9, 0.9), "not decided"),
        (gain(below=1.0), (1.0, 1.0, 1.0), "not decided"),
        (gain(below=1.0, measure="peak_memory_bytes"), (0.9, 0.9, 0.9), "confirmed"),
    ],
)
def test_an_interval_confirms_inside_the_limits_and_refutes_outside(
    test: Compared, numbers: tuple[float, ...], verdict: Verdict
) -> None:
    assert decided([(test, [comparison(*numbers)])]) == [verdict]


def test_the_more_tests_are_judged_together_the_more_each_must_show() -> None:
    # t of 6 with two degrees of freedom is significant at 2.7%: alone, but not as one of two that are as weak.
    weak = [comparison(*np.exp(np.array([0.06 - d, 0.06, 0.06 + d])).tolist()) for d in [0.06 * math.sqrt(3) / 6]]
    assert decided([(gain(above=1.0), weak)]) == ["confirmed"]
    assert decided([(gain(above=1.0), weak), (gain(above=1.0), weak)]) == ["not decided"] * 2
    found = judged([(gain(above=1.0), weak), (gain(above=1.0), weak)])[0].pooled
    assert found.coverage == pytest.approx(0.975) and found.low < 1 < found.value
    strong = [comparison(1.5, 1.51, 1.49)]
    assert decided([(gain(above=1.0), weak), (gain(above=1.0), strong)]) == ["confirmed"] * 2


def test_levels_follow_holm() -> None:
    # Holm's own order: the smallest p-value against 0.05/3, the next against 0.05/2, the last against 0.05.
    assert holm_levels([0.04, 0.01, 0.02]) == pytest.approx([0.95, 1 - 0.05 / 3, 0.975])
    assert holm_levels([0.04, 0.02, 0.02]) == pytest.approx([1 - 0.05 / 3] * 3)
    assert holm_levels([None, 0.03]) == pytest.approx([0.95, 0.95])


def test_shares_are_averaged_as_they_are_and_may_be_zero() -> None:
    test = AccuracyReached(statement="It is high.", where={}, epochs=20, above=0.5)
    [result] = judged([(test, [comparison(0.0, 0.1, 0.2), comparison(0.2, 0.1, 0.03)])])
    assert result.verdict == "refuted" and result.pooled.value == pytest.approx(0.105)


def test_series_are_compared_in_the_blocks_that_all_have() -> None:
    full, short = comparison(2.0, 2.0, 2.0), comparison(8.0, 8.0)
    assert same_blocks([full, short, full]) == [comparison(2.0, 2.0), short, comparison(2.0, 2.0)]
    assert same_blocks([ComparedNumber({1: 1.0}, ()), ComparedNumber({2: 1.0}, ())]) == []
    assert same_blocks([]) == same_blocks([ComparedNumber({}, ())]) == []
    [result] = judged([(gain(above=1.0), [ComparedNumber({1: 1.0}, ()), ComparedNumber({2: 1.0}, ())])])
    assert (result.verdict, result.pooled, result.comparisons) == ("not decided", None, [])
    [result] = judge_together([TestResult(gain(above=1.0), [], NOT_MEASURED, "no such runs")])
    assert (result.verdict, result.not_judged_because) == ("not measured here", "no such runs")
    few, full = comparison(1.21, 1.2), comparison(1.21, 1.2, 9.0)
    [result] = judged([(gain(above=1.0), [full, few])])
    assert result.verdict == "confirmed" and result.pooled.value == pytest.approx(math.sqrt(1.21 * 1.2))
    assert result.comparisons == [few, few]
