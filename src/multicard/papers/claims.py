"""The papers' claims, checked against the measurements: confirmed, refuted, not decided, not judged, not measured here.

A claim about GPUs is judged by runs on GPUs only, on work as large as the claim is about, whose pace is not set by
something else. What CPU processes, synthetic data, toy models or runs that wait for data show is reported beside it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

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
from multicard.papers.limits import Comparison, Quantity, Runs, Where, fits, once, quantity_words
from multicard.papers.tests import KINDS, AnyTest
from multicard.papers.verdicts import NOT_MEASURED, Pooled, Verdict, judge_together, pooled_interval

Hardware = Literal["gpu", "numa", "any"]
Text = Annotated[str, Field(min_length=1)]

# The claims that come with multicard.
SHIPPED = pipeline_folder() / "resources" / "claims.yaml"

NUMA_NODES = 2  # fewest on which placement matters

ABOUT: dict[Hardware, str] = {
    "gpu": "GPUs whose names are recorded",
    "numa": "GPUs of a machine that is known to have two or more NUMA nodes",
    "any": "real data",
}
OBSERVED = f"counted once, though measured with several values of {' or '.join(OBSERVATION)}"


class Claim(Strict):
    """One claim: what a paper says, where, what would refute it, and the tests that represent it.

    `size` has the values that runs of a workload must have to be judged.
    """

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    claim: Text
    paper: Text
    source: Text
    refuted_if: Text
    hardware: Hardware
    size: dict[Literal[tuple(WORKLOADS)], Where] = Field(default_factory=dict)
    our_choice: str = ""
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
        found = f"Not judged: {self.not_judged_because}"
        if self.pooled is not None:
            found = f"{self.verdict.capitalize()}: {_pooled_words(self.pooled, self.test.quantity)}"
        return f"{'' if self.test.decides else 'Another reading: '}{self.test.statement} {found}."


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
        without = "; ".join(f"{each.test.statement.removesuffix('.')} ({each.not_judged_because})" for each in missing)
        if len(missing) < len(tests):
            return f"in part; not judged: {without}"
        reasons = {each.not_judged_because for each in missing}
        return f"no: {without if len(reasons) > 1 else reasons.pop()}"

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
        repeats = " to ".join(map(str, dict.fromkeys((blocks[0], blocks[-1]))))
        words = f"{machines(every.values())}; {'; '.join(versions)}; {counted(len(every), 'run')}, repeats: {repeats}"
        disturbed = [text for run in every.values() if (text := run.values.get("disturbance"))]
        return f"{words}; disturbed runs: {how_many(disturbed, len(every))}" if disturbed else words

    @property
    def other_evidence(self) -> str:
        """What the comparisons show that are not judged, by the reason."""
        found: dict[str, list[str]] = defaultdict(list)
        for each in self.tests:
            for reason in dict.fromkeys(other.why_not for other in each.others):
                of_reason = [other for other in each.others if other.why_not == reason]
                found[reason].append(f"{each.test.statement} Found: {_range_words(of_reason, each.test.quantity)}.")
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


def _judge(
    claim: Claim, evidence: Evidence, undisturbed: Sequence[Configuration], several_nodes: set[str | None]
) -> JudgedClaim:
    found = [_compared(test, claim, evidence, undisturbed, several_nodes) for test in claim.tests]
    # What decides the claim is one family, other readings are another.
    verdicts: dict[int, tuple[Verdict, Pooled | None]] = {}
    for decides in (True, False):
        family = [index for index, test in enumerate(claim.tests) if test.decides == decides]
        judged = judge_together([(claim.tests[i], [one for one in found[i] if not one.why_not]) for i in family])
        verdicts |= dict(zip(family, judged, strict=True))
    tests = []
    for index, (test, comparisons) in enumerate(zip(claim.tests, found, strict=True)):
        verdict, pooled = verdicts[index]
        sides = [each.sides for each in comparisons]
        if pooled is None and any(not any(_why_not(side, claim, several_nodes) for side in each) for each in sides):
            verdict = "not judged"  # runs that the claim is about were measured
        pooled_ones = {id(one) for one, _ in pooled.single} if pooled else set()
        others = [
            replace(one, why_not=one.why_not or "not in all of the blocks")
            for one in comparisons
            if id(one) not in pooled_ones
        ]
        tests.append(TestResult(test, verdict, pooled, others, _missing(claim, test, pooled, others)))
    return JudgedClaim(claim, _verdict_of_claim({each.verdict for each in tests if each.test.decides}), tests)


def _compared(
    test: AnyTest,
    claim: Claim,
    evidence: Evidence,
    undisturbed: Sequence[Configuration],
    several_nodes: set[str | None],
) -> list[Comparison]:
    """The comparisons of a test; of those that differ only in how their runs are observed one may be judged."""

    def why_not(one: Configuration) -> str:
        return _why_not(one, claim, several_nodes) or (test.timed and _doubt(one)) or test.why_not(one)

    configurations = undisturbed if test.timed else evidence.configurations
    found = test.comparisons(Runs(configurations, evidence, why_not))
    kept = {id(each) for each in once(found, test.job_sides)}
    return [each if id(each) in kept else replace(each, why_not=each.why_not or OBSERVED) for each in found]


def _why_not(configuration: Configuration, claim: Claim, several_nodes: set[str | None]) -> str:
    """Why a configuration's runs are not judged whatever the test; empty where they may be."""
    place, on_gpu = configuration.provenance, claim.hardware != "any"
    if any(run.synthetic for run in configuration.runs):
        return "synthetic timings"
    if place.data_source == SYNTHETIC:
        return "synthetic images"  # which no loader reads, decodes or copies
    if on_gpu and configuration["device"] != "cuda":
        return "CPU processes"
    if not fits(configuration, claim.size.get(configuration["workload"], {})):
        return "too small a workload"
    if on_gpu and place.gpu is None:
        return "GPU not recorded"
    if claim.hardware == "numa" and place.machine not in several_nodes:
        return "machine not known to have two or more NUMA nodes"
    return ""


def _undisturbed(configuration: Configuration) -> Configuration:
    """The configuration without completed runs whose times are doubtful, as long as others are left."""
    if _doubt(configuration):
        return configuration
    return replace(configuration, runs=tuple(run for run in configuration.completed if not _doubt_of_run(run)))


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
        return f"not measured on {ABOUT[claim.hardware]}: there are no {test.needs}"
    counts = Counter(one.why_not for one in others)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{counted(count, 'comparison')}: {reason}" for reason, count in counts.items())


def _verdict_of_claim(verdicts: Collection[Verdict]) -> Verdict:
    """Refuted by one test, confirmed by all."""
    if "refuted" in verdicts:
        return "refuted"
    if len(verdicts) == 1:
        return next(iter(verdicts))
    return "not judged" if verdicts == {"not judged", NOT_MEASURED} else "not decided"


def _pooled_words(pooled: Pooled, quantity: Quantity) -> str:
    """A pooled number with its interval, of how much it is, and how far the single comparisons differ."""
    words, single = _in_words(pooled.found, quantity), sorted(pooled.single, key=lambda each: each[1].value)
    (low, lowest), (high, highest) = single[0], single[-1]
    if len(single) == 1:
        return f"{words} ({low.what}; {low.in_short})"
    least, most = (quantity_words(each.value, quantity) for each in (lowest, highest))
    return (
        f"{words}, pooled from {len(single)} comparisons, which vary from {least} ({low.what}; {low.in_short}) to "
        f"{most} ({high.what}; {high.in_short})"
    )


def _range_words(comparisons: Sequence[Comparison], quantity: Quantity) -> str:
    """A number with its interval, or the range of several."""
    found = [pooled_interval([each.by_block], quantity) for each in comparisons]
    if len(found) == 1:
        return _in_words(found[0], quantity)
    least, most = (quantity_words(end(each.value for each in found), quantity) for end in (min, max))
    return f"{least} to {most} in {len(found)} comparisons"


def _in_words(found: Interval, quantity: Quantity) -> str:
    return found.format(partial(quantity_words, quantity=quantity))


def machines(runs: Iterable[MeasuredRun]) -> str:
    """Names of the machines of some runs."""
    return "; ".join(dict.fromkeys(run.provenance.machine or "machine unknown" for run in runs))


def _fault(error: dict, content: list) -> str:
    """Format one pydantic error as `claim.key: found …, what is wrong`."""
    index, *keys = error["loc"]
    named = content[index].get("id", index) if isinstance(content[index], dict) else index
    place = ".".join(str(key) for key in (named, *keys) if key not in KINDS)  # pydantic's own part of the place
    match error["type"]:
        case "missing":
            return f"{place}: missing"
        case "extra_forbidden":
            return f"{place}: unknown key"
        case "value_error":
            return f"{place}: {error['ctx']['error']}"
    return f"{place}: found {error['input']!r}, {error['msg'][0].lower()}{error['msg'][1:]}"
