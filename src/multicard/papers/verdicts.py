"""Verdicts on tests: the comparisons of a test are pooled into one number, whose interval is held against the limits.

A claim makes few statements, but a matrix of runs has many comparisons for each. If each comparison were judged alone,
chance would decide some of them, and more of them in a larger matrix. So all comparisons of a test are averaged within
each block of repeats. The interval is that over blocks, which are independent of each other. More comparisons make it
narrower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from multicard.papers.claim_tests import ClaimTest
from multicard.papers.compared_numbers import ComparedNumber, same_blocks
from multicard.results.configuration import MeasuredRun
from multicard.stats.corrections import holm_levels
from multicard.stats.interval import EQUAL_REPEATS, LEVEL, Interval
from multicard.stats.pool import pooled

NOT_MEASURED: Final = "not measured here"
Verdict = Literal["confirmed", "refuted", "not decided", "not judged", "not measured here"]


@dataclass(frozen=True)
class TestResult:
    """A test of a claim, the comparisons that it is judged by and, once `judge_together` returns it, its verdict.

    Attributes
    ----------
    test
        The test.
    comparisons
        The comparisons that are pooled. Without any, the test cannot be judged.
    verdict
        The verdict on the test.
    not_judged_because
        Why the measurements cannot decide the test; empty if they can.
    pooled
        The mean of the test's number over blocks, with the p-value of the limit that decides. None without comparisons.
    """

    # Pytest collects no class that has this.
    __test__ = False

    test: ClaimTest
    comparisons: Sequence[ComparedNumber]
    verdict: Verdict = "not decided"
    not_judged_because: str = ""
    pooled: Interval | None = None

    @property
    def runs(self) -> list[MeasuredRun]:
        """The runs behind the number, each once."""
        runs = [run for comparison in self.comparisons for run in comparison.runs(comparison.by_block)]
        return list({run.run: run for run in runs}.values())

    @property
    def finding(self) -> str:
        """The verdict, the number with its interval, and the range of single comparisons; or why there is no number."""
        if self.pooled is None:
            return f"Not judged: {self.not_judged_because}"
        text = f"{self.verdict.capitalize()}: {self.pooled.format(self.test.in_words)}"
        values = [_mean(self.test, [comparison]).value for comparison in self.comparisons]
        if len(values) > 1:
            lowest, highest = self.test.in_words(min(values)), self.test.in_words(max(values))
            text += f", from {len(values)} comparisons, {lowest} to {highest}"
        return text


def judge_together(tests: Sequence[TestResult]) -> list[TestResult]:
    """Return the results of tests with their verdicts. A test without comparisons stays as it is.

    A test is confirmed if its interval lies wholly inside the limits, and refuted if it lies wholly outside. The levels
    of the intervals are those of Holm's step-down procedure (`corrections.holm_levels`). So the probability that one or
    more of these tests are decided wrongly is at most 5%.
    """
    results = [replace(result, comparisons=same_blocks(result.comparisons)) for result in tests]
    p_values = [_pooled(result).p_value if result.comparisons else None for result in results]
    levels = holm_levels(p_values)
    return [
        _judged(result, level) if result.comparisons else result for result, level in zip(results, levels, strict=True)
    ]


def _judged(result: TestResult, level: float) -> TestResult:
    """Return the result of a test with its verdict, or with the reason why its comparisons have no interval."""
    test = result.test
    interval = _pooled(result, level)
    if interval.low is None or interval.high is None:
        reason = EQUAL_REPEATS if interval.repeats > 1 else "one repeat only, which has no interval"
        return replace(result, pooled=interval, not_judged_because=reason)
    verdict: Verdict = "not decided"
    if interval.high < test.above or interval.low > test.below:
        verdict = "refuted"
    elif interval.low > test.above and interval.high < test.below:
        verdict = "confirmed"
    return replace(result, pooled=interval, verdict=verdict)


def _pooled(result: TestResult, level: float = LEVEL) -> Interval:
    """Return the pooled number. Its p-value is that of the limit that its interval must exclude to decide the test."""
    test = result.test
    value = _mean(test, result.comparisons).value
    if value < test.above:
        decisive_limits = [test.above]
    elif value > test.below:
        decisive_limits = [test.below]
    else:
        # A number inside the limits must differ from both. So the limit with the larger p-value decides.
        decisive_limits = [limit for limit in (test.above, test.below) if math.isfinite(limit)]
    intervals = [_mean(test, result.comparisons, limit, level) for limit in decisive_limits]
    return max(intervals, key=lambda interval: interval.p_value or 0.0)


def _mean(
    test: ClaimTest, comparisons: Sequence[ComparedNumber], against: float = 1.0, level: float = LEVEL
) -> Interval:
    """Return the mean of comparisons: the geometric mean of ratios, or the arithmetic mean of shares.

    The mean of shares and its bounds are limited to 0 and 1. `against`: the value that the p-value tests the mean
    against. `level`: the coverage of the interval. Raises `ValueError` if no block is common to all comparisons.
    """
    numbers = [comparison.by_block for comparison in comparisons]
    mean = pooled(numbers, not test.is_share, against, level, exact=not test.is_timed)
    if mean is None:
        raise ValueError("expected comparisons with a common block")
    return mean.map(lambda end: min(1.0, max(0.0, end))) if test.is_share else mean
