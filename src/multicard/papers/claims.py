"""The papers' claims, checked against the measurements: confirmed, refuted, not decided, not judged, not measured here.

A claim about GPUs is judged by runs on GPUs only, on work as large as the claim is about, whose pace is not set by
something else. What CPU processes, synthetic data, toy models or runs that wait for data show is reported beside it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import Field, TypeAdapter, ValidationError

from multicard.analysis.choice.observation import observed_once
from multicard.analysis.evidence import OBSERVATION, SYNTHETIC, Configuration, Evidence, MeasuredRun
from multicard.analysis.runs.conditions import how_many
from multicard.analysis.runs.notices import DISTURBED, NOT_STATIONARY, disturbance_notice
from multicard.analysis.statistics import Interval
from multicard.core.errors import UserError
from multicard.core.pipeline import pipeline_folder
from multicard.core.text import counted
from multicard.experiment.datasets import Strict
from multicard.experiment.load import read_yaml
from multicard.experiment.workload import WORKLOADS
from multicard.papers.limits import Comparison, Number, Where, fits, quantity_words
from multicard.papers.tests import KINDS, AnyTest
from multicard.papers.verdicts import Pooled, Verdict, interval, judge_together

Hardware = Literal["gpu", "numa", "any"]

# The claims that come with multicard.
SHIPPED = pipeline_folder() / "resources" / "claims.yaml"

NUMA_NODES = 2  # fewest on which placement matters

ABOUT: dict[Hardware, str] = {
    "gpu": "GPUs whose names are recorded",
    "numa": "GPUs of a machine that is known to have two or more NUMA nodes",
    "any": "real data",
}
NOT_JUDGED: Verdict = "not judged"
NOT_MEASURED: Verdict = "not measured here"
COLUMNS = (
    "claim", "verdict", "claim_text", "paper", "source", "hardware", "refuted_if", "can_be_judged", "finding",
    "conditions", "other_evidence", "our_choice",
)  # fmt: skip
TEST_COLUMNS = (
    "claim", "test", "decides", "verdict", "quantity", "value", "low", "high", "level", "p_value", "above", "below",
    "refuted_if", "comparisons", "lowest", "highest", "blocks", "not_judged_because",
)  # fmt: skip
COMPARISON_COLUMNS = (
    "claim", "test", "comparison", "configuration", "value", "low", "high", "repeats", "pooled", "not_judged_because",
    "machine", "runs",
)  # fmt: skip


class Claim(Strict):
    """One claim: what a paper says, where, what would refute it, and the tests that represent it."""

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    claim: Annotated[str, Field(min_length=1, description="What the paper says, in our words.")]
    paper: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1, description="Where it says so.")]
    refuted_if: Annotated[str, Field(min_length=1, description="What measurement would refute it, in one sentence.")]
    hardware: Annotated[Hardware, Field(description="What a run must be on to be judged.")]
    size: Annotated[
        dict[Literal[tuple(WORKLOADS)], Where],
        Field(default_factory=dict, description="Values that runs of a workload must have to be judged."),
    ]
    our_choice: Annotated[str, Field(description="What about the tests is our choice.")] = ""
    tests: Annotated[list[AnyTest], Field(min_length=1)]


@dataclass(frozen=True)
class TestResult:
    """One test of a claim: its verdict, what is pooled, and the comparisons that are not judged (`others`)."""

    __test__ = False  # not for pytest

    test: AnyTest
    verdict: Verdict
    pooled: Pooled | None
    others: list[Comparison]
    not_judged_because: str

    @property
    def finding(self) -> str:
        """Statement, verdict and numbers in words."""
        reading = "" if self.test.decides else "Another reading: "
        if self.pooled is None:
            return f"{reading}{self.test.statement} Not judged: {self.not_judged_because}."
        words = _pooled_words(self.pooled, self.test.number)
        return f"{reading}{self.test.statement} {self.verdict.capitalize()}: {words}."


@dataclass(frozen=True)
class JudgedClaim:
    """A claim and what the measurements say about it."""

    claim: Claim
    verdict: Verdict
    tests: list[TestResult]

    @property
    def can_be_judged(self) -> str:
        """Whether the runs can decide it: yes; in part or no, and why not."""
        tests = [each for each in self.tests if each.test.decides]
        missing = [each for each in tests if each.not_judged_because]
        if not missing:
            return "yes"
        reasons = dict.fromkeys(each.not_judged_because for each in missing)
        without = "; ".join(f"{each.test.statement.removesuffix('.')} ({each.not_judged_because})" for each in missing)
        if len(missing) < len(tests):
            return f"in part; not judged: {without}"
        return f"no: {without if len(reasons) > 1 else next(iter(reasons))}"

    @property
    def finding(self) -> str:
        """Those of the tests."""
        return " ".join(each.finding for each in self.tests)

    @property
    def conditions(self) -> str:
        """Machine, versions, blocks, number of runs behind the pooled numbers, and how many of them were disturbed."""
        pooled = [each.pooled for each in self.tests if each.pooled is not None]
        every = {run.run: run for each in pooled for run in each.runs}
        if not every:
            return ""
        versions = dict.fromkeys(run.provenance.versions or "versions unknown" for run in every.values())
        blocks = sorted({each.found.repeats for each in pooled})
        repeats = f"{blocks[0]}" if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]}"
        words = f"{_machines(every.values())}; {'; '.join(versions)}; {counted(len(every), 'run')}, repeats: {repeats}"
        disturbed = [text for run in every.values() if (text := run.values.get("disturbance"))]
        return f"{words}; disturbed runs: {how_many(disturbed, len(every))}" if disturbed else words

    @property
    def other_evidence(self) -> str:
        """What the comparisons show that are not judged, by the reason."""
        found: dict[str, list[str]] = defaultdict(list)
        for each in self.tests:
            for reason in dict.fromkeys(other.why_not for other in each.others):
                single = [interval(one, each.test.number) for one in each.others if one.why_not == reason]
                found[reason].append(f"{each.test.statement} Found: {_range_words(single, each.test.number)}.")
        return " ".join(f"Not judged ({reason}): {' '.join(texts)}" for reason, texts in found.items())


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
    nodes: dict[str | None, set[int]] = defaultdict(set)
    for run in evidence.runs:
        nodes[run.provenance.machine] |= run.provenance.numa_nodes
    several = {machine for machine, found in nodes.items() if len(found) >= NUMA_NODES}
    undisturbed = [_undisturbed(each) for each in evidence.configurations]
    return [_judge(claim, evidence, undisturbed, several) for claim in claims]


def claims_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per claim, columns `COLUMNS`."""
    rows = [
        {"claim": each.claim.id, "verdict": each.verdict, "claim_text": each.claim.claim, "paper": each.claim.paper,
         "source": each.claim.source, "hardware": each.claim.hardware, "refuted_if": each.claim.refuted_if,
         "can_be_judged": each.can_be_judged, "finding": each.finding, "conditions": each.conditions,
         "other_evidence": each.other_evidence, "our_choice": each.claim.our_choice}
        for each in judged
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def pooled_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per test with its pooled number, columns `TEST_COLUMNS`."""
    rows = []
    for each in judged:
        for result in each.tests:
            test, pooled = result.test, result.pooled
            row = {"claim": each.claim.id, "test": test.statement, "decides": test.decides, "verdict": result.verdict,
                   "quantity": test.number, "above": test.above, "below": test.below, "refuted_if": test.refuted_if(),
                   "comparisons": 0, "not_judged_because": result.not_judged_because}  # fmt: skip
            if pooled is not None:
                values = [found.value for _, found in pooled.single]
                row |= {"value": pooled.found.value, "low": pooled.found.low, "high": pooled.found.high,
                        "level": pooled.level, "p_value": pooled.found.p_value, "comparisons": len(values),
                        "lowest": min(values), "highest": max(values), "blocks": pooled.found.repeats}  # fmt: skip
            rows.append(row)
    return pd.DataFrame(rows, columns=list(TEST_COLUMNS))


def comparisons_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per single comparison, for information; columns `COMPARISON_COLUMNS`."""
    rows = []
    for each in judged:
        for result in each.tests:
            single = result.pooled.single if result.pooled else []
            others = [(one, interval(one, result.test.number)) for one in result.others]
            rows += [
                {"claim": each.claim.id, "test": result.test.statement, "comparison": one.what,
                 "configuration": one.under, "value": found.value, "low": found.low, "high": found.high,
                 "repeats": found.repeats, "pooled": pooled, "not_judged_because": one.why_not,
                 "machine": _machines(runs), "runs": " ".join(dict.fromkeys(run.run for run in runs))}
                for pooled, comparisons in ((True, single), (False, others))
                for one, found in comparisons
                for runs in [one.runs(result.pooled.blocks if pooled else None)]
            ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))


def _judge(
    claim: Claim, evidence: Evidence, undisturbed: Sequence[Configuration], several_nodes: set[str | None]
) -> JudgedClaim:
    found = []
    for test in claim.tests:

        def why_not(configuration: Configuration, test: AnyTest = test) -> str:
            doubt = _doubt(configuration) if test.timed else ""
            return _why_not(configuration, claim, several_nodes) or doubt or test.why_not(configuration)

        compared = test.comparisons(undisturbed if test.timed else evidence.configurations, evidence, why_not)
        found.append(_each_once(test, compared))
    # What decides the claim is one family, other readings are another.
    verdicts: dict[int, tuple[Verdict, Pooled | None]] = {}
    for decides in (True, False):
        family = [index for index, test in enumerate(claim.tests) if test.decides == decides]
        judged = judge_together([(claim.tests[i], [one for one in found[i] if not one.why_not]) for i in family])
        verdicts |= dict(zip(family, judged, strict=True))
    tests = []
    for index, (test, comparisons) in enumerate(zip(claim.tests, found, strict=True)):
        verdict, pooled = verdicts[index]
        if pooled is None and any(
            all(not _why_not(side, claim, several_nodes) for side in one.sides) for one in comparisons
        ):
            verdict = NOT_JUDGED  # runs that the claim is about were measured
        pooled_ones = {id(one) for one, _ in pooled.single} if pooled else set()
        others = [
            replace(one, why_not=one.why_not or "not in all of the blocks")
            for one in comparisons
            if id(one) not in pooled_ones
        ]
        tests.append(TestResult(test, verdict, pooled, others, _missing(claim, test, pooled, others)))
    return JudgedClaim(claim, _verdict_of_claim([each.verdict for each in tests if each.test.decides]), tests)


def _why_not(configuration: Configuration, claim: Claim, several_nodes: set[str | None]) -> str:
    """Why a configuration's runs are not judged whatever the test; empty where they may be."""
    if any(run.synthetic for run in configuration.runs):
        return "synthetic timings"
    if configuration.provenance.data_source == SYNTHETIC:
        return "synthetic images"  # which no loader reads, decodes or copies
    if claim.hardware != "any" and configuration["device"] != "cuda":
        return "CPU processes"
    if not fits(configuration, claim.size.get(configuration["workload"], {})):
        return "too small a workload"
    if claim.hardware != "any" and configuration.provenance.gpu is None:
        return "GPU not recorded"
    if claim.hardware == "numa" and configuration.provenance.machine not in several_nodes:
        return "machine not known to have two or more NUMA nodes"
    return ""


def _each_once(test: AnyTest, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Leave one to be judged of those that differ only in how their runs are observed."""
    once = observed_once(
        [one.sides for one in comparisons],
        [test.job(one) for one in comparisons],
        [len(one.by_block) for one in comparisons],
        [not one.why_not for one in comparisons],
    )
    again = f"counted once, though measured with several values of {' or '.join(OBSERVATION)}"
    return [
        one if index in once else replace(one, why_not=one.why_not or again) for index, one in enumerate(comparisons)
    ]


def _undisturbed(configuration: Configuration) -> Configuration:
    """The configuration without completed runs whose times are doubtful, as long as others are left."""
    if _doubt(configuration):
        return configuration
    completed = configuration.completed
    return replace(configuration, runs=tuple(run for run in completed if not _doubt_of_run(run)))


def _doubt(configuration: Configuration) -> str:
    """What makes the times of all completed runs doubtful; empty where one run is free of it."""
    found = [_doubt_of_run(run) for run in configuration.completed]
    return ", ".join(dict.fromkeys(found)) if all(found) else ""


def _doubt_of_run(run: MeasuredRun) -> str:
    if disturbance_notice(run.values):
        return DISTURBED
    return NOT_STATIONARY if run.values.get("stationary") is False else ""


def _missing(claim: Claim, test: AnyTest, pooled: Pooled | None, others: Sequence[Comparison]) -> str:
    """Why there is nothing to judge a test by; empty where there is."""
    if pooled is not None:
        return "" if pooled.found.low is not None else "one repeat only, which has no interval"
    if not others:
        return f"not measured on {ABOUT[claim.hardware]}: there are no {test.needs()}"
    counts = Counter(one.why_not for one in others)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{counted(count, 'comparison')}: {reason}" for reason, count in counts.items())


def _verdict_of_claim(verdicts: Sequence[Verdict]) -> Verdict:
    """Refuted by one test, confirmed by all."""
    if "refuted" in verdicts:
        return "refuted"
    if len(set(verdicts)) == 1:
        return verdicts[0]
    if set(verdicts) == {NOT_JUDGED, NOT_MEASURED}:
        return NOT_JUDGED
    return "not decided"


def _pooled_words(pooled: Pooled, quantity: Number) -> str:
    """A pooled number with its interval, of how much it is, and how far the single comparisons differ."""
    found, single = pooled.found, sorted(pooled.single, key=lambda each: each[1].value)
    words = found.format(partial(quantity_words, quantity=quantity))
    (low, lowest), (high, highest) = single[0], single[-1]
    if len(single) == 1:
        return f"{words} ({low.what}; {low.in_short})"
    least, most = (quantity_words(each.value, quantity) for each in (lowest, highest))
    return (
        f"{words}, pooled from {len(single)} comparisons, which vary from {least} ({low.what}; {low.in_short}) to "
        f"{most} ({high.what}; {high.in_short})"
    )


def _range_words(found: Sequence[Interval], quantity: Number) -> str:
    """A number with its interval, or the range of several."""
    if len(found) == 1:
        return found[0].format(partial(quantity_words, quantity=quantity))
    least, most = (quantity_words(end(each.value for each in found), quantity) for end in (min, max))
    return f"{least} to {most} in {len(found)} comparisons"


def _machines(runs: Iterable[MeasuredRun]) -> str:
    return "; ".join(dict.fromkeys(run.provenance.machine or "machine unknown" for run in runs))


def _fault(error: dict, content: list) -> str:
    """Format one pydantic error as `claim.key: found …, what is wrong`."""
    index, *keys = error["loc"]
    named = content[index].get("id", index) if isinstance(content[index], dict) else index
    kinds = {kind.model_fields["kind"].annotation.__args__[0] for kind in KINDS}  # pydantic's own part of the place
    place = ".".join(str(key) for key in (named, *keys) if key not in kinds)
    match error["type"]:
        case "missing":
            return f"{place}: missing"
        case "extra_forbidden":
            return f"{place}: unknown key"
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
    return f"{place}: found {error['input']!r}, {error['msg'][0].lower()}{error['msg'][1:]}"
