"""Whether results are worse than those of a baseline by more than a tolerance.

A change is the ratio of geometric means less one, with a sign by which worse is above zero: 0.1 of an iteration time is
10% longer, of a throughput 10% less. It is a regression if it is worse than the tolerance and its ratio differs from
that of the tolerance: a t test of logarithms at 5%, by the scatter of all configurations of both sides (`pooling`),
corrected for all that are judged together (Holm). Then its 95% interval lies beyond the tolerance. Where nothing is
worse than the tolerance, at most one family in forty shows a regression, since only one side of the test counts. It is
within the tolerance if its own interval is, which is not corrected: to call all of a family within it wrongly, each
that is not has to be called so (Roger Berger, Technometrics 24, 1982).

Repeats of one session share an offset that they do not show. Sides that ran in the same sessions are compared within
them. Else the values are means of sessions, and their scatter tells, if any configuration was measured in several; or
the spread of sessions is stated; or nothing can be told. Memory does not depend on the session.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from multicard.analysis.comparison.result_comparison import (
    DISTURBED_RUNS,
    HARDWARE,
    NOT_RECORDED,
    Configuration,
    Side,
    environment_differences,
    typical,
)
from multicard.analysis.pooling import Pool
from multicard.analysis.runs.notices import PROFILED
from multicard.analysis.runs.sessions import sessions_of
from multicard.analysis.scaling.speedup import RATES
from multicard.analysis.statistics import LEVEL, Interval, corrected, repeats_needed
from multicard.core.text import counted
from multicard.core.units import percent
from multicard.experiment.parameters import DEFAULT_WORKLOAD
from multicard.experiment.workload import WORKLOADS

REGRESSION, UNDECIDED, WITHIN, CANNOT_TELL = "regression", "undecided", "within tolerance", "cannot tell"
Verdict = Literal["regression", "undecided", "within tolerance", "cannot tell"]
ONE_SESSION = "each side ran in a session of its own, which may be as far off"
FEWEST_REPEATS = 3  # advised where nothing is known of the spread: two have an interval, and hardly ever a verdict


@dataclass(frozen=True)
class Measure:
    """What can be checked: its columns, of which a run has one; whether more is worse; words for worse and better."""

    columns: tuple[str, ...]
    more_is_worse: bool
    worse: str
    better: str
    of_session: bool = True  # whether sessions differ in it

    @property
    def sign(self) -> int:
        """1 where more is worse, else -1."""
        return 1 if self.more_is_worse else -1

    def of(self, configuration: Configuration) -> str | None:
        """The column that a configuration has, that of its workload's unit first."""
        work = WORKLOADS.get(configuration.parameters.get("workload", DEFAULT_WORKLOAD))
        own = (work.unit.throughput, work.unit.energy) if work else ()
        columns = sorted(self.columns, key=lambda column: column not in own)
        return next((column for column in columns if column in configuration.values), None)


MEASURES: dict[str, Measure] = {
    "iteration_time": Measure(("iteration_time_s",), True, "slower", "faster"),
    "throughput": Measure(RATES, False, "less throughput", "more throughput"),
    "memory": Measure(("peak_memory_bytes",), True, "more memory", "less memory", False),
    "energy": Measure(("energy_per_sample_j", "energy_per_token_j"), True, "more energy", "less energy"),
}


@dataclass(frozen=True)
class Pair:
    """Values of a measure of one configuration, over the repeats of the baseline and of what is checked.

    `sessions` has the session of each value of both; None where it is not known.
    """

    configuration: str
    measure: str
    baseline: Sequence[float]
    new: Sequence[float]
    sessions: tuple[Sequence[int], Sequence[int]] | None = None


@dataclass(frozen=True)
class Judgement:
    """One measure of one configuration.

    Attributes
    ----------
    configuration
        Id of its runs, less the repeat.
    measure
        One of `MEASURES`; `outcome` where runs that completed in the baseline do not any more.
    baseline, new
        Geometric means over repeats; None without values.
    change
        By how much it is worse, as a share of the baseline, with its own 95% interval; its p-value is corrected.
    repeats
        Completed runs with the measure, of the baseline and of what is checked.
    verdict
        See the module.
    reason
        What more there is to say.
    repeats_needed
        Of each side where it is undecided, to find a change of twice the tolerance with a probability of 80%, by the
        spread of these repeats.
    """

    configuration: str
    measure: str
    baseline: float | None
    new: float | None
    change: Interval
    repeats: tuple[int, int]
    verdict: Verdict
    reason: str | None = None
    repeats_needed: int | None = None


@dataclass(frozen=True)
class RegressionCheck:
    """What became worse from a baseline to new results.

    Attributes
    ----------
    tolerance
        As a share.
    judgements
        Of configurations that completed in the baseline, in its order.
    missing, added
        Configurations that only the baseline has, and only the new results.
    not_compared
        Configurations that completed in neither, or for the first time, and how they ended.
    hardware
        What differs in hardware: what, and its values in the baseline and in the new results.
    environment
        What else differs: versions, variables, data, the name of the machine.
    doubts
        Runs whose numbers are in doubt: `baseline` or `new`, their id, and why.
    """

    tolerance: float
    judgements: list[Judgement]
    missing: list[str]
    added: list[str]
    not_compared: dict[str, str]
    hardware: list[tuple[str, str, str]]
    environment: list[tuple[str, str, str]]
    doubts: list[tuple[str, str, str]]

    def of(self, verdict: Verdict) -> list[Judgement]:
        """The judgements with a verdict."""
        return [each for each in self.judgements if each.verdict == verdict]

    @property
    def undecidable(self) -> list[str]:
        """Measures of which nothing can be told: there is no interval of any configuration."""
        told = {each.measure: False for each in self.judgements}
        for each in self.judgements:
            told[each.measure] |= each.verdict != CANNOT_TELL or each.reason == ONE_SESSION
        return [measure for measure, is_told in told.items() if not is_told]

    @property
    def in_one_session(self) -> list[Judgement]:
        """Judgements that only repeats in further sessions could decide."""
        return [each for each in self.judgements if each.reason == ONE_SESSION]


def check_sides(
    baseline: Side,
    new: Side,
    tolerance: float = 0.03,
    measures: Sequence[str] = ("iteration_time",),
    session_spread: float | None = None,
) -> RegressionCheck:
    """Judge what changed from a baseline to new results.

    Parameters
    ----------
    baseline, new
        Two sets of results. Their repeats did not run in turn, so they are not paired.
    tolerance
        Share of the baseline by which a measure may be worse, from 0 to below 1.
    measures
        Some of `MEASURES`.
    session_spread
        By how much sessions differ, as a standard deviation; None for what the runs tell.
    """
    before, after = baseline.configurations, new.configurations
    shared = [key for key in before if key in after]
    compared = [key for key in shared if before[key].values]
    differences = environment_differences(baseline.records_of(shared), new.records_of(shared))
    hardware = _hardware(differences)
    ended = [(key, failures(before[key], after[key])) for key in compared]
    sessions = sessions_of([baseline.records, new.records])
    pairs = [
        pair_of(before[key].name, name, (before[key], after[key]), sessions)
        for key in compared
        if after[key].values
        for name in measures
    ]
    judged = [failed(before[key].name, why) for key, why in ended if why] + judge(pairs, tolerance, session_spread)
    place = {before[key].name: index for index, key in enumerate(compared)}
    return RegressionCheck(
        tolerance=tolerance,
        judgements=sorted(judged, key=lambda each: place[each.configuration]),
        missing=[one.name for key, one in before.items() if key not in after],
        added=[one.name for key, one in after.items() if key not in before],
        not_compared={
            before[key].name: "completed for the first time" if after[key].values else "completed in neither"
            for key in shared
            if key not in compared
        },
        hardware=hardware,
        environment=[row for row in differences if row not in hardware and row[0] != DISTURBED_RUNS],  # see doubts
        doubts=[
            (side, run, "; ".join(shown))
            for side, configurations in (("baseline", before), ("new", after))
            for key in compared
            for run, why in configurations[key].doubts.items()
            # No measure is of the profiled window.
            if (shown := [each for each in why if not each.startswith(PROFILED)])
        ],
    )


def judge(pairs: Sequence[Pair], tolerance: float, session_spread: float | None = None) -> list[Judgement]:
    """Judge changes that are reported together, each against the tolerance.

    >>> slower = Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09], ([1, 1, 1], [1, 1, 1]))
    >>> [(found.verdict, round(found.change.value, 3)) for found in judge([slower], 0.03)]
    [('regression', 0.1)]
    """
    ratios: dict[int, tuple[Interval, float | None, bool]] = {}
    for measure in {pair.measure for pair in pairs}:
        own = [index for index, pair in enumerate(pairs) if pair.measure == measure]
        limit = 1 + MEASURES[measure].sign * tolerance
        ratios |= zip(own, _ratios([pairs[index] for index in own], limit, session_spread), strict=True)
    found = [ratios[index] for index in range(len(pairs))]
    adjusted = corrected([ratio for ratio, *_ in found])
    comparisons = max(1, sum(ratio.p_value is not None for ratio in adjusted))
    return [
        _judgement(pair, ratio, tolerance, comparisons, deviation, one_session)
        for pair, ratio, (_, deviation, one_session) in zip(pairs, adjusted, found, strict=True)
    ]


def pair_of(name: str, measure: str, of: Sequence[Configuration], sessions: Sequence[dict[str, int]]) -> Pair:
    """Values of a measure on two sides, with their sessions where all are known."""
    column = MEASURES[measure].of(of[0])
    runs = [each.runs.get(column, []) for each in of]
    values = [each.values.get(column, []) for each in of]
    places = [[own.get(run) for run in each] for own, each in zip(sessions, runs, strict=True)]
    known = all(each and len(each) == len(own) and None not in each for each, own in zip(places, values, strict=True))
    return Pair(name, measure, *values, tuple(places) if known else None)


def _ratios(pairs: Sequence[Pair], limit: float, spread: float | None) -> list[tuple[Interval, float | None, bool]]:
    """Ratios of one measure, the scatter of repeats where more of them would tell, and whether sessions hide the rest.

    Such a ratio has the interval of the repeats within its sessions, and no p-value.
    """
    within = Pool([values for pair in pairs for values in (pair.baseline, pair.new)])
    means = Pool([each for pair in pairs for each in _by_session(pair)])
    found = []
    for place, pair in enumerate(pairs):
        at = 2 * place + 1, 2 * place
        sets = [set(own) for own in pair.sessions] if pair.sessions else None
        if not MEASURES[pair.measure].of_session or (sets and sets[0] == sets[1] and len(sets[0]) == 1):
            found.append((within.ratio(*at, limit), within.deviation(*at), False))
        elif spread is not None:
            found.append(
                (within.ratio(*at, limit, offset=spread), within.deviation(*at) if spread == 0 else None, False)
            )
        elif sets and (ratio := means.ratio(*at, limit, single=True)).p_value is not None:
            found.append((ratio, None, False))
        else:
            ratio = within.ratio(*at, limit)
            found.append((replace(ratio, p_value=None), None, ratio.p_value is not None))
    return found


def _by_session(pair: Pair) -> list[dict[int, float]]:
    """Geometric mean of each session of both sides; nothing where sessions are not known, or a value is not above 0."""
    if pair.sessions is None or min((*pair.baseline, *pair.new), default=0) <= 0:
        return [{}, {}]
    sides = zip((pair.baseline, pair.new), pair.sessions, strict=True)
    return [
        {
            each: typical([value for value, of in zip(values, own, strict=True) if of == each])
            for each in dict.fromkeys(own)
        }
        for values, own in sides
    ]


def unlike_hardware(one: Side, other: Side) -> list[tuple[str, str, str]]:
    """What differs in hardware between the runs of the configurations that two sets of results share."""
    shared = [key for key in one.configurations if key in other.configurations]
    return _hardware(environment_differences(one.records_of(shared), other.records_of(shared)))


def _hardware(differences: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [row for row in differences if row[0] in HARDWARE and NOT_RECORDED not in row]


def failures(before: Configuration, after: Configuration) -> str | None:
    """How runs of a configuration end now that did not before: where all completed, or where none does any more."""
    ended = [[outcome for outcome in each.outcomes.values() if outcome != "completed"] for each in (before, after)]
    if not ended[1] or (ended[0] and after.values):
        return None
    kinds = ", ".join(dict.fromkeys(ended[1]))
    completed = len(before.outcomes) - len(ended[0])
    return f"{kinds} in {len(ended[1])} of {counted(len(after.outcomes), 'run')}; {completed} completed in the baseline"


def failed(name: str, why: str) -> Judgement:
    """The regression that runs of a configuration do not complete any more."""
    nothing = Interval(None, None, None, 0)
    return Judgement(name, "outcome", None, None, nothing, (0, 0), REGRESSION, why)


def _judgement(
    pair: Pair, ratio: Interval, tolerance: float, comparisons: int, deviation: float | None, one_session: bool
) -> Judgement:
    measure = MEASURES[pair.measure]
    change = _worse(ratio, measure)
    verdict, reason, needed = UNDECIDED, None, None
    if change.p_value is None:
        verdict, reason = CANNOT_TELL, ONE_SESSION if one_session else _why_unknown(pair)
    elif change.value > tolerance and change.p_value <= 1 - LEVEL:
        verdict = REGRESSION
    elif change.high <= tolerance:
        verdict = WITHIN
    else:
        needed = None if deviation is None else _repeats_needed(deviation, measure, tolerance, comparisons)
        reason = _why_undecided(change, needed, min(map(len, (pair.baseline, pair.new))), tolerance, comparisons)
    return Judgement(
        configuration=pair.configuration,
        measure=pair.measure,
        baseline=typical(pair.baseline),
        new=typical(pair.new),
        change=change,
        repeats=(len(pair.baseline), len(pair.new)),
        verdict=verdict,
        reason=reason,
        repeats_needed=needed,
    )


def _worse(ratio: Interval, measure: Measure) -> Interval:
    """The change that a ratio of new to baseline is: worse is above zero."""
    ends = [None if end is None else measure.sign * (end - 1) for end in (ratio.low, ratio.high)]
    low, high = ends[:: measure.sign]
    return replace(ratio, value=None if ratio.value is None else measure.sign * (ratio.value - 1), low=low, high=high)


def _why_unknown(pair: Pair) -> str:
    for side, values in (("the baseline", pair.baseline), ("the new results", pair.new)):
        if len(values) == 0:
            return f"{pair.measure} was not measured in {side}"
    if min(*pair.baseline, *pair.new) <= 0:  # as of a meter that counts in steps longer than the window
        return f"{pair.measure} is 0 in a repeat, so there is no ratio"
    sides = [side for side, values in (("baseline", pair.baseline), ("new", pair.new)) if len(values) == 1]
    return f"one repeat ({' and '.join(sides)}), so no spread is known: run {FEWEST_REPEATS} or more of each"


def _why_undecided(
    change: Interval, needed: int | None, repeats: int, tolerance: float, comparisons: int
) -> str | None:
    """What keeps a change from being told, and how many repeats would."""
    parts = []
    if change.low > tolerance:
        parts.append(f"may be chance among {comparisons} comparisons, while the interval is of this one alone")
    elif needed is not None and needed <= repeats:
        parts.append("close to the tolerance")
    if needed is not None and needed > repeats:
        parts.append(f"repeat each about {needed} times to find a change of {percent(2 * tolerance, decimals=1)}")
    return "; ".join(parts) or None


def _repeats_needed(deviation: float, measure: Measure, tolerance: float, comparisons: int) -> int | None:
    """Repeats of each side to find a change of twice the tolerance; None where that has no number, or is too large."""
    limit, change = (1 + measure.sign * share for share in (tolerance, 2 * tolerance))
    if tolerance == 0 or change <= 0:
        return None
    return repeats_needed(deviation, abs(math.log(change / limit)), comparisons)
