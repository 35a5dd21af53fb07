"""The papers' claims, checked against the measurements: confirmed, refuted, not decided, not judged, not measured here.

A claim makes few statements, and a matrix many comparisons for each. Judged one by one, some of many would be decided
by chance, the more the larger the matrix. So all comparisons of a test are pooled within each block of repeats, and the
blocks, which are independent of each other, give the interval: more comparisons make it narrower.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pandas as pd

from multicard.analysis.evidence import SYNTHETIC, Configuration, Evidence, MeasuredRun, read_evidence
from multicard.analysis.runs.notices import DISTURBED, NOT_STATIONARY, told
from multicard.analysis.scenario_tables import write_csv
from multicard.core.layout import CLAIM_TESTS, CLAIMS
from multicard.core.text import counted
from multicard.core.units import number
from multicard.papers.claims import ABOUT, Claim, read_claims
from multicard.papers.tests import AnyTest, Comparison, Quantity, fits, same_blocks
from multicard.stats.corrections import holm_levels
from multicard.stats.interval import EQUAL_REPEATS, LEVEL, Interval
from multicard.stats.pool import pooled

NUMA_NODES = 2  # fewest on which placement matters
NOT_MEASURED = "not measured here"
Verdict = Literal["confirmed", "refuted", "not decided", "not judged", "not measured here"]

COLUMNS = (
    "claim", "verdict", "claim_text", "paper", "source", "hardware", "refuted_if", "can_be_judged", "finding",
    "conditions", "our_choice",
)  # fmt: skip
TEST_COLUMNS = (
    "claim", "test", "verdict", "finding", "value", "low", "high", "level", "comparisons", "blocks",
    "not_judged_because",
)  # fmt: skip


@dataclass(frozen=True)
class TestResult:
    """One test of a claim."""

    __test__ = False  # not for pytest

    test: AnyTest
    verdict: Verdict
    # Its number over the blocks, with the p-value of the limit that decides; None without comparisons.
    found: Interval | None = None
    comparisons: Sequence[Comparison] = ()  # those behind it
    not_judged_because: str = ""  # why there is nothing to judge it by; empty where there is

    @property
    def runs(self) -> list[MeasuredRun]:
        """The runs behind the number, each once."""
        return list({run.run: run for each in self.comparisons for run in each.runs(each.by_block)}.values())

    @property
    def finding(self) -> str:
        """Verdict, the number with its interval, and how far the single comparisons differ."""
        if self.found is None:
            return f"Not judged: {self.not_judged_because}"
        show = partial(_in_words, quantity=self.test.quantity)
        values = sorted(pooled_interval([each], self.test.quantity).value for each in self.comparisons)
        several = f", from {len(values)} comparisons, {show(values[0])} to {show(values[-1])}"
        return f"{self.verdict.capitalize()}: {self.found.format(show)}{several if len(values) > 1 else ''}"


def _in_words(value: float, quantity: Quantity) -> str:
    return f"{number(100 * value)}%" if quantity == "share" else number(value)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and what the measurements say about it."""

    claim: Claim
    verdict: Verdict
    tests: list[TestResult]

    @property
    def can_be_judged(self) -> str:
        """Whether the runs can decide it: yes; in part or no, and why not."""
        missing = [each for each in self.tests if each.not_judged_because]
        if not missing:
            return "yes"
        words = [f"{each.test.statement.removesuffix('.')} ({each.not_judged_because})" for each in missing]
        return f"{'no' if len(missing) == len(self.tests) else 'in part; not judged'}: {'; '.join(words)}"

    @property
    def finding(self) -> str:
        """Those of the tests."""
        return " ".join(f"{each.test.statement} {each.finding}." for each in self.tests)

    @property
    def conditions(self) -> str:
        """Machines, versions, number of runs behind the pooled numbers, and their repeats."""
        every = {run.run: run.provenance for each in self.tests for run in each.runs}
        if not every:
            return ""
        machines = dict.fromkeys(place.machine or "machine unknown" for place in every.values())
        versions = dict.fromkeys(place.versions or "versions unknown" for place in every.values())
        blocks = sorted({each.found.repeats for each in self.tests if each.found})
        repeats = " to ".join(map(str, dict.fromkeys((blocks[0], blocks[-1]))))
        return f"{'; '.join(machines)}; {'; '.join(versions)}; {counted(len(every), 'run')}, repeats: {repeats}"


def judge(claims: Sequence[Claim], evidence: Evidence) -> list[JudgedClaim]:
    """Check each claim against the measurements."""
    nodes: dict[str | None, set[int]] = defaultdict(set)
    for run in evidence.runs:
        nodes[run.provenance.machine] |= run.provenance.numa_nodes
    several = {machine for machine, found in nodes.items() if len(found) >= NUMA_NODES}
    return [_judge(claim, evidence, several) for claim in claims]


def _judge(claim: Claim, evidence: Evidence, several_nodes: set[str | None]) -> JudgedClaim:
    found = [_compared(test, claim, evidence, several_nodes) for test in claim.tests]
    tests = judge_together([(test, own) for test, (own, _, _) in zip(claim.tests, found, strict=True)])
    for place, (each, (_, verdict, why)) in enumerate(zip(tests, found, strict=True)):
        if each.found is None:
            tests[place] = replace(each, verdict=verdict, not_judged_because=why)
        elif each.found.low is None:
            why = EQUAL_REPEATS if each.found.repeats > 1 else "one repeat only, which has no interval"
            tests[place] = replace(each, not_judged_because=why)
    return JudgedClaim(claim, _verdict_of_claim({each.verdict for each in tests}), tests)


def _compared(
    test: AnyTest, claim: Claim, evidence: Evidence, several_nodes: set[str | None]
) -> tuple[list[Comparison], Verdict, str]:
    """The comparisons of a test that may be judged; without any the verdict, and why there are none."""
    about = [each for each in evidence.configurations if not _why_not(each, claim, several_nodes)]
    shown = [each for each in about if not test.why_not(each)]
    if test.timed:
        shown = [replace(each, runs=tuple(run for run in each.completed if not _doubts(run))) for each in shown]
    if found := test.comparisons(shown, evidence):
        return found, "not decided", ""
    if found := test.comparisons(about, evidence):  # runs that the claim is about were measured
        return [], "not judged", _reasons(found, lambda side: test.why_not(side) or _doubts_of(side))
    if found := test.comparisons(evidence.configurations, evidence):
        return [], NOT_MEASURED, _reasons(found, lambda side: _why_not(side, claim, several_nodes))
    return [], NOT_MEASURED, f"no such runs on {ABOUT[claim.hardware]}"


def _reasons(found: Sequence[Comparison], why_not: Callable[[Configuration], str]) -> str:
    return ", ".join(dict.fromkeys(reason for each in found for side in each.sides if (reason := why_not(side))))


def _why_not(configuration: Configuration, claim: Claim, several_nodes: set[str | None]) -> str:
    """Why a configuration's runs are not judged whatever the test; empty where they may be."""
    place, on_gpu = configuration.provenance, claim.hardware != "any"
    reasons = {
        "synthetic timings": any(run.synthetic for run in configuration.runs),
        "synthetic images": place.data_source == SYNTHETIC,  # which no loader reads, decodes or copies
        "CPU processes": on_gpu and configuration["device"] != "cuda",
        "too small a workload": not fits(configuration, claim.size.get(configuration["workload"], {})),
        "GPU not recorded": on_gpu and place.gpu is None,
        "machine not known to have two or more NUMA nodes": claim.hardware == "numa"
        and place.machine not in several_nodes,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _doubts(run: MeasuredRun) -> list[str]:
    """Why its times are doubtful."""
    return [kind for kind in (DISTURBED, NOT_STATIONARY) if kind in told(run.values)][:1]


def _doubts_of(configuration: Configuration) -> str:
    return ", ".join(dict.fromkeys(doubt for run in configuration.completed for doubt in _doubts(run)))


def _verdict_of_claim(verdicts: Collection[Verdict]) -> Verdict:
    """Refuted by one test, confirmed by all."""
    if "refuted" in verdicts:
        return "refuted"
    if len(verdicts) == 1:
        return next(iter(verdicts))
    return "not judged" if verdicts == {"not judged", NOT_MEASURED} else "not decided"


def judge_together(tests: Sequence[tuple[AnyTest, Sequence[Comparison]]]) -> list[TestResult]:
    """Judge some tests, each by its comparisons.

    A test is confirmed where its interval lies wholly inside the limits and refuted where it lies wholly outside. The
    levels of the intervals are those of Holm's step-down procedure (Scandinavian Journal of Statistics 6, 1979), so
    that one or more tests are decided wrongly with a probability of at most 5%.
    """
    series = [same_blocks(comparisons) for _, comparisons in tests]
    p_values = [_found(test, each).p_value if each else None for (test, _), each in zip(tests, series, strict=True)]
    results = []
    for (test, _), kept, level in zip(tests, series, holm_levels(p_values), strict=True):
        found = _found(test, kept, level) if kept else None
        results.append(TestResult(test, _verdict(test, found) if found else NOT_MEASURED, found, kept))
    return results


def pooled_interval(
    comparisons: Sequence[Comparison],
    quantity: Quantity,
    against: float = 1.0,
    level: float = LEVEL,
    exact: bool = False,
) -> Interval:
    """Return the mean of comparisons, of ratios the geometric one; of a share, bounds are from 0 to 1.

    Raises `ValueError` without a block that all comparisons have.
    """
    found = pooled([each.by_block for each in comparisons], quantity == "ratio", against, level, exact)
    if found is None:
        raise ValueError("expected comparisons with a common block")
    return found if quantity == "ratio" else found.map(lambda end: min(1.0, max(0.0, end)))


def _found(test: AnyTest, comparisons: Sequence[Comparison], level: float = LEVEL) -> Interval:
    """The pooled number; its p-value is of the limit that it must exclude to be decided."""
    value = pooled_interval(comparisons, test.quantity).value
    limits = [limit for limit in (test.above, test.below) if limit is not None]
    violated = [limit for limit in limits if (value < limit if limit == test.above else value > limit)]
    # Inside the limits all of them must be excluded, outside the one that is violated.
    found = [pooled_interval(comparisons, test.quantity, limit, level, not test.timed) for limit in violated or limits]
    return max(found, key=lambda each: each.p_value or 0.0)


def _verdict(test: AnyTest, found: Interval) -> Verdict:
    if found.low is None or found.high is None:
        return "not decided"
    above = test.above if test.above is not None else -math.inf
    below = test.below if test.below is not None else math.inf
    if found.high < above or found.low > below:
        return "refuted"
    return "confirmed" if found.low > above and found.high < below else "not decided"


def write_claims(claims: Path, results: Path, scenarios: Sequence[str]) -> None:
    """Check the claims against the scenarios of a results folder: CSVs with a row per claim, and per test.

    Raises `UserError` if the claims are faulty, or a scenario's measures are not there.
    """
    judged = judge(read_claims(claims), read_evidence(results, scenarios))
    write_csv(claims_table(judged), results / CLAIMS)
    write_csv(table_of_tests(judged), results / CLAIM_TESTS)


def claims_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per claim, columns `COLUMNS`."""
    own = ("verdict", "can_be_judged", "finding", "conditions")
    rows = [
        each.claim.model_dump()
        | {"claim": each.claim.id, "claim_text": each.claim.claim}
        | {name: getattr(each, name) for name in own}
        for each in judged
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def table_of_tests(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per test with its pooled number, columns `TEST_COLUMNS`."""
    rows = []
    for name, each in ((claim.claim.id, each) for claim in judged for each in claim.tests):
        row = {"claim": name, "test": each.test.statement, "verdict": each.verdict, "finding": each.finding}
        row |= {"comparisons": len(each.comparisons), "not_judged_because": each.not_judged_because}
        if found := each.found:
            row |= {"value": found.value, "low": found.low, "high": found.high}
            row |= {"level": found.coverage, "blocks": found.repeats}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(TEST_COLUMNS))
