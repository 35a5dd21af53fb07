"""The papers' claims, checked against the measurements: confirmed, refuted, not decided, or not measured here.

A claim about GPUs is decided only by runs on GPUs, on work as large as the claim is about. What CPU processes,
synthetic data or toy models show is reported beside it and decides nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field, TypeAdapter, ValidationError

from multicard.analysis.claim_limits import Comparison, Where, fits
from multicard.analysis.claim_tests import AnyTest
from multicard.analysis.evidence import Configuration, Evidence
from multicard.analysis.statistics import Interval
from multicard.core.errors import UserError
from multicard.core.units import number
from multicard.experiment.datasets import Strict
from multicard.experiment.load import read_yaml

Verdict = Literal["confirmed", "refuted", "not decided", "not measured here"]
Hardware = Literal["gpu", "numa", "any"]

# The claims that come with multicard, which is installed from its repository's folder.
SHIPPED = Path(__file__).parents[3] / "resources" / "claims.yaml"

NUMA_NODES = 2  # fewest on which placement matters

ABOUT: dict[Hardware, str] = {
    "gpu": "GPUs whose names are recorded",
    "numa": "GPUs of a machine that is known to have two or more NUMA nodes",
    "any": "real data",
}
COLUMNS = (
    "claim", "verdict", "says", "paper", "source", "hardware", "finding", "conditions", "aside", "ours",
)  # fmt: skip
COMPARISON_COLUMNS = (
    "claim", "test", "decides", "comparison", "configuration", "value", "low", "high", "repeats", "above", "below",
    "answer", "machine", "runs",
)  # fmt: skip


class Claim(Strict):
    """One claim: what a paper says, where, and the tests that represent it."""

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    claim: Annotated[str, Field(min_length=1, description="What the paper says, in our words.")]
    paper: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1, description="Where it says so.")]
    hardware: Annotated[Hardware, Field(description="What a run must be on to decide.")]
    size: Annotated[
        dict[Literal["vision", "llm"], Where],
        Field(default_factory=dict, description="Values that runs of a workload must have to decide."),
    ]
    ours: Annotated[str, Field(description="What about the tests is our choice.")] = ""
    tests: Annotated[list[AnyTest], Field(min_length=1)]


@dataclass(frozen=True)
class TestResult:
    """One test of a claim: its verdict, the comparisons that decide, and those that do not (`others`)."""

    __test__ = False  # not for pytest

    statement: str
    verdict: Verdict
    comparisons: list[Comparison]
    others: list[Comparison]
    above: float | None
    below: float | None
    finding: str
    aside: str


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and what the measurements say about it; `conditions` are those of the runs that decide."""

    claim: Claim
    verdict: Verdict
    tests: list[TestResult]
    finding: str
    conditions: str
    aside: str


def read_claims(path: Path) -> list[Claim]:
    """Read the claims.

    Raises
    ------
    UserError
        One line per fault.
    """
    content = read_yaml(path)
    if not isinstance(content, list):
        raise UserError(f"{path}: expected a list of claims, found {type(content).__name__}")
    try:
        claims = TypeAdapter(list[Claim]).validate_python(content)
    except ValidationError as error:
        raise UserError(*(f"{path}: {_fault(each, content)}" for each in error.errors())) from None
    twice = [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]
    if twice:
        raise UserError(f"{path}: the claim {twice[0]} is listed twice")
    return claims


def judge(claims: Sequence[Claim], evidence: Evidence) -> list[JudgedClaim]:
    """Check each claim against the measurements."""
    return [_judge(claim, evidence) for claim in claims]


def claims_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per claim, columns `COLUMNS`."""
    rows = [
        {"claim": each.claim.id, "verdict": each.verdict, "says": each.claim.claim, "paper": each.claim.paper,
         "source": each.claim.source, "hardware": each.claim.hardware, "finding": each.finding,
         "conditions": each.conditions, "aside": each.aside, "ours": each.claim.ours}
        for each in judged
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def comparisons_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per comparison, including those that decide nothing; columns `COMPARISON_COLUMNS`."""
    rows = [
        {"claim": each.claim.id, "test": test.statement, "decides": decides, "comparison": one.what,
         "configuration": one.under, "value": one.found.value, "low": one.found.low, "high": one.found.high,
         "repeats": one.found.repeats,
         "above": test.above, "below": test.below, "answer": one.answer if decides else None,
         "machine": _machines([one]), "runs": " ".join(dict.fromkeys(run.run for run in one.runs))}
        for each in judged
        for test in each.tests
        for decides, comparisons in ((True, test.comparisons), (False, test.others))
        for one in comparisons
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))


def _judge(claim: Claim, evidence: Evidence) -> JudgedClaim:
    deciding, other = _split(claim, evidence)
    tests = []
    for test in claim.tests:
        comparisons = test.comparisons(deciding, evidence)
        others = test.comparisons(other, evidence)
        verdict = _verdict_of_test(comparisons)
        if comparisons:
            finding = f"{test.statement} {_sentence(verdict)}: {_numbers(comparisons)}."
        else:
            finding = f"{test.statement} Not measured on {ABOUT[claim.hardware]}: there are no {test.needs()}."
        aside = f"{test.statement} Found: {_numbers(others, answers=False)}." if others else ""
        tests.append(TestResult(test.statement, verdict, comparisons, others, test.above, test.below, finding, aside))
    asides = [test.aside for test in tests if test.aside]
    decided_by = [one for test in tests for one in test.comparisons]
    return JudgedClaim(
        claim,
        _verdict_of_claim([test.verdict for test in tests]),
        tests,
        finding=" ".join(test.finding for test in tests),
        conditions=_conditions(decided_by),
        aside=f"Decides nothing, since it was measured on {_kinds(tests)}: {' '.join(asides)}" if asides else "",
    )


def _split(claim: Claim, evidence: Evidence) -> tuple[list[Configuration], list[Configuration]]:
    """Configurations whose runs may decide a claim, and the others."""
    nodes: dict[str | None, set[int]] = {}
    for run in evidence.runs:
        nodes.setdefault(run.provenance.machine, set()).update(run.provenance.numa_nodes)

    def decides(configuration: Configuration) -> bool:
        if any(run.synthetic for run in configuration.runs):
            return False
        if not fits(configuration, claim.size.get(configuration["workload"], {})):
            return False
        on_gpu = configuration["device"] == "cuda" and configuration.provenance.gpu is not None
        if claim.hardware == "numa":
            return on_gpu and len(nodes[configuration.provenance.machine]) >= NUMA_NODES
        return on_gpu or claim.hardware == "any"

    sides: tuple[list[Configuration], list[Configuration]] = ([], [])
    for configuration in evidence.configurations:
        sides[not decides(configuration)].append(configuration)
    return sides


def _verdict_of_test(comparisons: Sequence[Comparison]) -> Verdict:
    """More than half of the comparisons must agree, and none contradict."""
    if not comparisons:
        return "not measured here"
    counts = Counter(one.answer for one in comparisons)
    if counts["yes"] > len(comparisons) / 2 and not counts["no"]:
        return "confirmed"
    return "refuted" if counts["no"] > len(comparisons) / 2 and not counts["yes"] else "not decided"


def _verdict_of_claim(verdicts: Sequence[Verdict]) -> Verdict:
    """Refuted by one test, confirmed by all."""
    if "refuted" in verdicts:
        return "refuted"
    if len(set(verdicts)) == 1:
        return verdicts[0]
    return "not decided"


def _sentence(verdict: Verdict) -> str:
    return {"confirmed": "Confirmed", "refuted": "Refuted", "not decided": "Not decided"}.get(verdict, verdict)


def _numbers(comparisons: Sequence[Comparison], answers: bool = True) -> str:
    """The number of one comparison; of several the smallest and the largest, and how many support the claim."""
    ordered = sorted(comparisons, key=lambda one: one.found.value)
    lowest, highest = ordered[0], ordered[-1]
    if len(ordered) == 1:
        return f"{interval_words(lowest.found)} ({lowest.what}; {lowest.in_short})"
    counts = Counter(one.answer for one in ordered)
    tally = f", {counts['yes']} support it, {counts['no']} contradict it, {counts['open']} are open" if answers else ""
    return (
        f"{len(ordered)} comparisons{tally}; from {interval_words(lowest.found)} ({lowest.what}; {lowest.in_short}) "
        f"to {interval_words(highest.found)} ({highest.what}; {highest.in_short})"
    )


def interval_words(found: Interval) -> str:
    """Format a number with its bounds.

    >>> interval_words(Interval(1.25, 1.2, 1.3, 3, coverage=0.95)), interval_words(Interval(1.25, None, None, 1))
    ('1.25 [1.2, 1.3]', '1.25 (no interval: one repeat)')
    >>> interval_words(Interval(1.25, 1.2, 1.3, 3))
    '1.25 (range 1.2 to 1.3)'
    """
    if found.low is None or found.high is None:
        return f"{number(found.value)} (no interval: one repeat)"
    if found.coverage is None:
        return f"{number(found.value)} (range {number(found.low)} to {number(found.high)})"
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}]"


def _conditions(comparisons: Sequence[Comparison]) -> str:
    """Machine, versions, repeats and number of runs behind the comparisons."""
    if not comparisons:
        return ""
    repeats = [one.found.repeats for one in comparisons]
    runs = {run.run for one in comparisons for run in one.runs}
    versions = dict.fromkeys(run.provenance.versions or "versions unknown" for one in comparisons for run in one.runs)
    fewest, most = min(repeats), max(repeats)
    counted = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"{_machines(comparisons)}; {'; '.join(versions)}; {len(runs)} runs, repeats: {counted}"


def _machines(comparisons: Sequence[Comparison]) -> str:
    return "; ".join(
        dict.fromkeys(run.provenance.machine or "machine unknown" for one in comparisons for run in one.runs)
    )


def _kinds(tests: Sequence[TestResult]) -> str:
    """What the runs that decide nothing are."""
    runs = [run for test in tests for one in test.others for run in one.runs]
    kinds = {
        "synthetic data"
        if run.synthetic
        else "CPU processes"
        if run.values.get("device") == "cpu"
        else "GPUs with too small a workload, or on a machine not known to be of the kind"
        for run in runs
    }
    return ", ".join(sorted(kinds))


def _fault(error: dict, content: list) -> str:
    """Format one pydantic error as `claim.key: found …, what is wrong`."""
    index, *keys = error["loc"]
    named = content[index].get("id", index) if isinstance(content[index], dict) else index
    kinds = {"compare", "trend", "efficiency", "scaling", "api_time", "reaches"}  # pydantic's own part of the place
    place = ".".join(str(key) for key in (named, *keys) if key not in kinds)
    match error["type"]:
        case "missing":
            return f"{place}: missing"
        case "extra_forbidden":
            return f"{place}: unknown key"
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
    return f"{place}: found {error['input']!r}, {error['msg'][0].lower()}{error['msg'][1:]}"
