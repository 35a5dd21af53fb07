"""The verdict on each change from one set of results to the next, and the reason where it needs one.

A change is the ratio of geometric means less one, with a sign by which worse is above zero: 0.1 of an iteration time is
10% longer, of a throughput 10% less. Its interval and p-value are those of `estimates`.

- `regression`: it is worse than the tolerance, and differs from that at a level of 5%, corrected for all changes that
  are judged together (Holm). Without a tolerance it differs from no change. Where nothing is worse than the tolerance,
  at most one family in forty shows a regression, since only one side of the test counts.
- `better`: likewise, to the other side; only without a tolerance.
- `within tolerance`: its own interval is, which is not corrected: to call all of a family within it wrongly, each that
  is not has to be called so (Roger Berger, Technometrics 24, 1982).
- `undecided`: none of these.
- `cannot tell`: it has no p-value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from multicard.analysis.comparison.estimates import Estimate, estimates_of
from multicard.analysis.comparison.pairs import COMPARED_MEASURES, Pair, SharedConfiguration, is_measured
from multicard.core.text import counted
from multicard.results.configuration import Configuration
from multicard.stats.interval import EQUAL_REPEATS, Interval, is_significant
from multicard.stats.samples import geometric_mean

REGRESSION: Final = "regression"
BETTER: Final = "better"
UNDECIDED: Final = "undecided"
WITHIN: Final = "within tolerance"
CANNOT_TELL: Final = "cannot tell"
ChangeVerdict = Literal["regression", "better", "undecided", "within tolerance", "cannot tell"]

OUTCOME = "outcome"  # the measure of a change of how runs end
ONE_SESSION = "each side ran in a session of its own, which may be as far off"
FEWEST_REPEATS = 3  # advised where nothing is known of the spread: two have an interval, and hardly ever a verdict


@dataclass(frozen=True)
class Change:
    """A measure of one configuration on both sides, with its verdict. Made by `judge` and `lost_runs`."""

    configuration: str
    # A name of `COMPARED_MEASURES`, or `OUTCOME` where runs that completed do not any more.
    measure: str
    # Geometric means over repeats, in the unit of `column`; None without values.
    a: float | None
    b: float | None
    # How much worse b is, as a share of a, with its own 95% interval and a corrected p-value; None without a ratio.
    change: Interval | None
    # Completed runs with the measure, of both.
    repeats: tuple[int, int]
    # See the module.
    verdict: ChangeVerdict
    reason: str | None = None
    # Column of measures.csv with the values; None if neither side has one.
    column: str | None = None


def judge(pairs: Sequence[Pair], tolerance: float | None) -> list[Change]:
    """Judge changes that are reported together, each against the tolerance.

    >>> slower = Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09], ([1, 1, 1], [1, 1, 1]))
    >>> [(change.verdict, round(change.change.value, 3)) for change in judge([slower], 0.03)]
    [('regression', 0.1)]
    """
    estimates = estimates_of(pairs, tolerance)
    tested = [estimate for estimate in estimates if estimate.ratio is not None and estimate.ratio.p_value is not None]
    return [_change(estimate, tolerance, comparisons=len(tested)) for estimate in estimates]


def lost_runs(shared: SharedConfiguration) -> Change | None:
    """Return the change of a configuration whose runs fail now, and did not before; None if there is none.

    Every run of it completed before, or no run does any more. Where some failed before and some complete now, their
    numbers are chance.
    """
    before, after = shared
    failed_before, failed_after = _failed_outcomes(before), _failed_outcomes(after)
    completed_in_part = bool(failed_before) and is_measured(after)
    if not is_measured(before) or not failed_after or completed_in_part:
        return None
    kinds = ", ".join(dict.fromkeys(failed_after))
    failures = f"{kinds} in {len(failed_after)} of {counted(len(after.runs), 'run')}"
    return Change(
        configuration=shared.name,
        measure=OUTCOME,
        a=None,
        b=None,
        change=None,
        repeats=(0, 0),
        verdict=REGRESSION,
        reason=f"{failures}; {len(before.completed)} completed before",
    )


def _failed_outcomes(configuration: Configuration) -> list[str]:
    """Return the outcomes of the runs that did not complete."""
    outcomes = [run.values["outcome"] for run in configuration.runs]
    return [outcome for outcome in outcomes if outcome != "completed"]


def _change(estimate: Estimate, tolerance: float | None, comparisons: int) -> Change:
    """Return the change that an estimate shows, `comparisons` of which are tested together."""
    pair, ratio = estimate.pair, estimate.ratio
    change = ratio and ratio.map(COMPARED_MEASURES[pair.measure].change_by)
    verdict = _verdict(change, tolerance)
    return Change(
        configuration=pair.configuration,
        measure=pair.measure,
        a=_mean(pair.a),
        b=_mean(pair.b),
        change=change,
        repeats=pair.repeats,
        verdict=verdict,
        reason=_reason(estimate, change, verdict, tolerance, comparisons),
        column=pair.column,
    )


def _mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean; the arithmetic one if a value is not above zero, and None without values."""
    if len(values) == 0:
        return None
    return geometric_mean(values) or float(np.mean(values))


def _verdict(change: Interval | None, tolerance: float | None) -> ChangeVerdict:
    """Return the verdict on a change, of which the p-value is that of a change by the tolerance."""
    if change is None or change.p_value is None:
        return CANNOT_TELL
    differs = is_significant(change.p_value)
    if differs and change.value > (tolerance or 0.0):
        return REGRESSION
    if tolerance is None:
        return BETTER if differs and change.value < 0 else UNDECIDED
    is_within = change.high is not None and change.high <= tolerance
    return WITHIN if is_within else UNDECIDED


def _reason(
    estimate: Estimate, change: Interval | None, verdict: ChangeVerdict, tolerance: float | None, comparisons: int
) -> str | None:
    """Return why there is no verdict, or none that the interval of the change suggests; None if neither is so."""
    if verdict == CANNOT_TELL:
        return ONE_SESSION if estimate.lacks_sessions else _why_unknown(estimate.pair)
    if verdict != UNDECIDED or tolerance is None or change is None:
        return None
    if change.low is not None and change.low > tolerance:
        return f"may be chance among {comparisons} comparisons, while the interval is of this one alone"
    return None


def _why_unknown(pair: Pair) -> str:
    """Return why the values of a pair have no p-value."""
    count_a, count_b = pair.repeats
    for side, count in (("a", count_a), ("b", count_b)):
        if count == 0:
            return f"{pair.measure} was not measured in {side}"
    # A meter that counts in steps longer than the window may show nothing.
    if min(*pair.a, *pair.b) <= 0:
        return f"{pair.measure} is 0 in a repeat, so there is no ratio"
    # A clock that counts in coarse steps may give the same time to all repeats.
    if min(count_a, count_b) > 1:
        return f"{pair.measure}: {EQUAL_REPEATS}"
    single = [side for side, count in (("a", count_a), ("b", count_b)) if count == 1]
    return f"one repeat ({' and '.join(single)}), so no spread is known: run {FEWEST_REPEATS} or more of each"
