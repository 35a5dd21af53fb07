"""Verdicts on claims: which runs count for a claim, and what the verdicts on its tests say of it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from multicard.core.text import counted
from multicard.papers.claim import ABOUT, Claim
from multicard.papers.claim_tests import ClaimTest
from multicard.papers.compared_numbers import ComparedNumber
from multicard.papers.conditions import fits
from multicard.papers.verdicts import NOT_MEASURED, TestResult, Verdict, judge_together
from multicard.results.configuration import Configuration, MeasuredRun
from multicard.results.notices import DISTURBED, NOT_STATIONARY, notices_by_subject
from multicard.results.results import Results
from multicard.runs.environment import SYNTHETIC


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


def judge(claims: Sequence[Claim], results: Results) -> list[JudgedClaim]:
    """Judge each claim by the measurements."""
    numa_nodes_by_machine: dict[str | None, set[int]] = defaultdict(set)
    for run in results.runs:
        numa_nodes_by_machine[run.provenance.machine] |= run.provenance.numa_nodes
    # Where processes are placed matters only on machines with two or more NUMA nodes.
    numa_machines = {machine for machine, nodes in numa_nodes_by_machine.items() if len(nodes) >= 2}
    return [_judge(claim, results, numa_machines) for claim in claims]


def _judge(claim: Claim, results: Results, numa_machines: set[str | None]) -> JudgedClaim:
    tests = judge_together([_comparisons_of(test, claim, results, numa_machines) for test in claim.tests])
    return JudgedClaim(claim, _verdict_of_claim({result.verdict for result in tests}), tests)


def _comparisons_of(test: ClaimTest, claim: Claim, results: Results, numa_machines: set[str | None]) -> TestResult:
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
    if test.is_timed:
        of_test = [_without_doubtful_runs(configuration) for configuration in of_test]
    comparisons = test.comparisons(of_test, results)
    if comparisons:
        return TestResult(test, comparisons)
    # The test's exclusions are the reason if there are comparisons without them. If not, the claim's exclusions are the
    # reason if there are comparisons without these.
    excluded_by_test = test.comparisons(of_claim, results)
    if excluded_by_test:
        return TestResult(test, (), "not judged", _reasons(excluded_by_test, exclusion_from_test))
    excluded_by_claim = test.comparisons(results.configurations(), results)
    if excluded_by_claim:
        return TestResult(test, (), NOT_MEASURED, _reasons(excluded_by_claim, exclusion_from_claim))
    return TestResult(test, (), NOT_MEASURED, f"no such runs on {ABOUT[claim.hardware]}")


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
    if claim.size and not any(fits(configuration, size) for size in claim.size):
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
