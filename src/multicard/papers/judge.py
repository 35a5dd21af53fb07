"""The papers' claims, checked against the measurements: confirmed, refuted, not decided, not judged, not measured here.

A claim makes few statements, but a matrix of runs has many comparisons for each. If each comparison were judged alone,
chance would decide some of them, and more of them in a larger matrix. So all comparisons of a test are averaged within
each block of repeats. The interval is that over blocks, which are independent of each other. More comparisons make it
narrower.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from multicard.analysis.runs.notices import DISTURBED, NOT_STATIONARY, notices_by_subject
from multicard.core.text import counted
from multicard.core.units import number
from multicard.papers.claim_tests import AnyTest, NumberType, fits
from multicard.papers.claims import ABOUT, Claim
from multicard.papers.compared_numbers import ComparedNumber, same_blocks
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.results import Results
from multicard.runs.environment import SYNTHETIC
from multicard.stats.corrections import holm_levels
from multicard.stats.interval import EQUAL_REPEATS, LEVEL, Interval
from multicard.stats.pool import pooled

NOT_MEASURED: Final = "not measured here"
Verdict = Literal["confirmed", "refuted", "not decided", "not judged", "not measured here"]


@dataclass(frozen=True)
class TestResult:
    """A test of a claim with its verdict, made by `judge_together`.

    Attributes
    ----------
    test, verdict
        The test, and the verdict on it.
    pooled
        The mean of the test's number over blocks, with the p-value of the limit that decides. None without comparisons.
    comparisons
        The comparisons that were pooled.
    not_judged_because
        Why the measurements cannot decide the test; empty if they can.
    """

    # Pytest collects no class that has this.
    __test__ = False

    test: AnyTest
    verdict: Verdict
    pooled: Interval | None = None
    comparisons: Sequence[ComparedNumber] = ()
    not_judged_because: str = ""

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
        in_words = partial(_in_words, number_type=self.test.number_type)
        text = f"{self.verdict.capitalize()}: {self.pooled.format(in_words)}"
        values = [pooled_interval([comparison], self.test.number_type).value for comparison in self.comparisons]
        if len(values) > 1:
            text += f", from {len(values)} comparisons, {in_words(min(values))} to {in_words(max(values))}"
        return text


def _in_words(value: float, number_type: NumberType) -> str:
    return f"{number(100 * value)}%" if number_type == "share" else number(value)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the verdict on it and the results of its tests, made by `judge`."""

    claim: Claim
    verdict: Verdict
    tests: list[TestResult]

    @property
    def can_be_judged(self) -> str:
        """`yes` if the runs can decide all tests; else `in part` or `no`, with each test that they cannot, and why."""
        not_judged = [result for result in self.tests if result.not_judged_because]
        if not not_judged:
            return "yes"
        reasons = [f"{result.test.statement.removesuffix('.')} ({result.not_judged_because})" for result in not_judged]
        extent = "no" if len(not_judged) == len(self.tests) else "in part; not judged"
        return f"{extent}: {'; '.join(reasons)}"

    @property
    def finding(self) -> str:
        """The statement of each test, followed by its finding."""
        return " ".join(f"{result.test.statement} {result.finding}." for result in self.tests)

    @property
    def conditions(self) -> str:
        """Machines, versions, and numbers of runs and of repeats behind the pooled numbers; empty without runs."""
        provenances = {run.run: run.provenance for result in self.tests for run in result.runs}
        if not provenances:
            return ""
        machines = dict.fromkeys(provenance.machine or "machine unknown" for provenance in provenances.values())
        versions = dict.fromkeys(provenance.versions or "versions unknown" for provenance in provenances.values())
        counts = [result.pooled.repeats for result in self.tests if result.pooled]
        fewest, most = min(counts), max(counts)
        repeats = str(most) if fewest == most else f"{fewest} to {most}"
        runs = f"{counted(len(provenances), 'run')}, repeats: {repeats}"
        return "; ".join((*machines, *versions, runs))


@dataclass(frozen=True)
class _Basis:
    """The comparisons that a test is judged by. If there are none, `verdict` is the verdict and `reason` says why."""

    comparisons: list[ComparedNumber]
    verdict: Verdict = "not decided"
    reason: str = ""


def judge(claims: Sequence[Claim], results: Results) -> list[JudgedClaim]:
    """Judge each claim by the measurements."""
    numa_nodes_by_machine: dict[str | None, set[int]] = defaultdict(set)
    for run in results.runs:
        numa_nodes_by_machine[run.provenance.machine] |= run.provenance.numa_nodes
    # Where processes are placed matters only on machines with two or more NUMA nodes.
    numa_machines = {machine for machine, nodes in numa_nodes_by_machine.items() if len(nodes) >= 2}
    return [_judge(claim, results, numa_machines) for claim in claims]


def _judge(claim: Claim, results: Results, numa_machines: set[str | None]) -> JudgedClaim:
    bases = [_basis(test, claim, results, numa_machines) for test in claim.tests]
    judged = judge_together([(test, basis.comparisons) for test, basis in zip(claim.tests, bases, strict=True)])
    tests = [_with_reason(result, basis) for result, basis in zip(judged, bases, strict=True)]
    return JudgedClaim(claim, _verdict_of_claim({result.verdict for result in tests}), tests)


def _with_reason(result: TestResult, basis: _Basis) -> TestResult:
    """Return a result with the reason why it cannot be judged, if there is one.

    Without comparisons the verdict and the reason are those of `basis`. Without an interval the reason is why there is
    none.
    """
    if result.pooled is None:
        return replace(result, verdict=basis.verdict, not_judged_because=basis.reason)
    if result.pooled.low is None:
        reason = EQUAL_REPEATS if result.pooled.repeats > 1 else "one repeat only, which has no interval"
        return replace(result, not_judged_because=reason)
    return result


def _basis(test: AnyTest, claim: Claim, results: Results, numa_machines: set[str | None]) -> _Basis:
    """Return the comparisons that a test is judged by; if there are none, the verdict and the reason.

    A test is not judged if its own exclusions leave no comparisons. It is not measured here if those of the claim do,
    or if there are no such runs at all.
    """

    def exclusion_from_claim(configuration: Configuration) -> str:
        return _exclusion_reason(configuration, claim, numa_machines)

    def exclusion_from_test(configuration: Configuration) -> str:
        return test.exclusion_reason(configuration) or _doubts_of(configuration)

    of_claim = [configuration for configuration in results.configurations() if not exclusion_from_claim(configuration)]
    of_test = [configuration for configuration in of_claim if not test.exclusion_reason(configuration)]
    if test.timed:
        of_test = [_without_doubtful_runs(configuration) for configuration in of_test]
    comparisons = test.comparisons(of_test, results)
    if comparisons:
        return _Basis(comparisons)
    # If comparisons exist without the exclusions by the test, these exclusions are the reason why there are none. Then
    # the same is tried without the exclusions by the claim.
    excluded_by_test = test.comparisons(of_claim, results)
    if excluded_by_test:
        return _Basis([], "not judged", _reasons(excluded_by_test, exclusion_from_test))
    excluded_by_claim = test.comparisons(results.configurations(), results)
    if excluded_by_claim:
        return _Basis([], NOT_MEASURED, _reasons(excluded_by_claim, exclusion_from_claim))
    return _Basis([], NOT_MEASURED, f"no such runs on {ABOUT[claim.hardware]}")


def _reasons(comparisons: Sequence[ComparedNumber], exclusion_reason: Callable[[Configuration], str]) -> str:
    """Return the reasons why the sides of comparisons are excluded, each once, joined by commas."""
    reasons = [exclusion_reason(side) for comparison in comparisons for side in comparison.sides]
    return ", ".join(dict.fromkeys(filter(None, reasons)))


def _exclusion_reason(configuration: Configuration, claim: Claim, numa_machines: set[str | None]) -> str:
    """Return why a configuration does not count for any test of a claim; empty if it may count."""
    provenance = configuration.provenance
    if any(run.provenance.is_synthetic for run in configuration.runs):
        return "synthetic timings"
    # Synthetic images are already in memory, so no loader reads, decodes or copies them.
    if provenance.data_source == SYNTHETIC:
        return "synthetic images"
    needs_gpu = claim.hardware != "any"
    if needs_gpu and configuration["device"] != "cuda":
        return "CPU processes"
    if not fits(configuration, claim.size.get(configuration["workload"], {})):
        return "too small a workload"
    if needs_gpu and provenance.gpu is None:
        return "GPU not recorded"
    if claim.hardware == "numa" and provenance.machine not in numa_machines:
        return "machine not known to have two or more NUMA nodes"
    return ""


def _without_doubtful_runs(configuration: Configuration) -> Configuration:
    return replace(configuration, runs=tuple(run for run in configuration.completed if not _doubt_of(run)))


def _doubt_of(run: MeasuredRun) -> str:
    """Return why the times of a run are doubtful; empty if they are not."""
    notices = notices_by_subject(run.values)
    return next((notice for notice in (DISTURBED, NOT_STATIONARY) if notice in notices), "")


def _doubts_of(configuration: Configuration) -> str:
    doubts = [_doubt_of(run) for run in configuration.completed]
    return ", ".join(dict.fromkeys(filter(None, doubts)))


def _verdict_of_claim(verdicts: Collection[Verdict]) -> Verdict:
    """Return the verdict on a claim by the distinct verdicts on its tests.

    One refuted test refutes the claim. If all tests have the same verdict, the claim has it, too. Otherwise the claim
    is `not judged` if each test is not judged or not measured here, else `not decided`.
    """
    if "refuted" in verdicts:
        return "refuted"
    if len(verdicts) == 1:
        return next(iter(verdicts))
    return "not judged" if verdicts == {"not judged", NOT_MEASURED} else "not decided"


def judge_together(tests: Sequence[tuple[AnyTest, Sequence[ComparedNumber]]]) -> list[TestResult]:
    """Return the results of tests, each judged by its comparisons.

    A test is confirmed if its interval lies wholly inside the limits, and refuted if it lies wholly outside. The levels
    of the intervals are those of Holm's step-down procedure (`corrections.holm_levels`). So the probability that one or
    more of these tests are decided wrongly is at most 5%.
    """
    series = [(test, same_blocks(comparisons)) for test, comparisons in tests]
    levels = holm_levels([_pooled(test, kept).p_value if kept else None for test, kept in series])
    return [_result(test, kept, level) for (test, kept), level in zip(series, levels, strict=True)]


def _result(test: AnyTest, comparisons: Sequence[ComparedNumber], level: float) -> TestResult:
    if not comparisons:
        return TestResult(test, NOT_MEASURED)
    interval = _pooled(test, comparisons, level)
    return TestResult(test, _verdict(test, interval), interval, comparisons)


def pooled_interval(
    comparisons: Sequence[ComparedNumber],
    number_type: NumberType,
    against: float = 1.0,
    level: float = LEVEL,
    exact: bool = False,
) -> Interval:
    """Return the mean of comparisons: the geometric mean of ratios, or the arithmetic mean of shares.

    The mean of shares and its bounds are limited to 0 and 1. `against`: the value that the p-value tests the mean
    against. `level`: the coverage of the interval. `exact`: True if equal repeats show that nothing scatters. Raises
    `ValueError` if no block is common to all comparisons.
    """
    numbers = [comparison.by_block for comparison in comparisons]
    is_ratio = number_type == "ratio"
    mean = pooled(numbers, is_ratio, against, level, exact)
    if mean is None:
        raise ValueError("expected comparisons with a common block")
    return mean if is_ratio else mean.map(lambda end: min(1.0, max(0.0, end)))


def _pooled(test: AnyTest, comparisons: Sequence[ComparedNumber], level: float = LEVEL) -> Interval:
    """Return the pooled number. Its p-value is that of the limit that its interval must exclude to decide the test."""
    value = pooled_interval(comparisons, test.number_type).value
    if test.above is not None and value < test.above:
        decisive_limits = [test.above]
    elif test.below is not None and value > test.below:
        decisive_limits = [test.below]
    else:
        # A number inside the limits must differ from both. So the limit with the larger p-value decides.
        decisive_limits = [limit for limit in (test.above, test.below) if limit is not None]
    intervals = [
        pooled_interval(comparisons, test.number_type, limit, level, exact=not test.timed) for limit in decisive_limits
    ]
    return max(intervals, key=lambda interval: interval.p_value or 0.0)


def _verdict(test: AnyTest, interval: Interval) -> Verdict:
    if interval.low is None or interval.high is None:
        return "not decided"
    above = test.above if test.above is not None else -math.inf
    below = test.below if test.below is not None else math.inf
    if interval.high < above or interval.low > below:
        return "refuted"
    return "confirmed" if interval.low > above and interval.high < below else "not decided"
