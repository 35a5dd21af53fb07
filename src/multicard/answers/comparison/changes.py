"""The verdict on each change from one set of results (a) to the next (b), and the reason if the verdict needs one.

A change is the ratio of the geometric means, b over a, less 1. Its sign is such that a change above 0 is worse: 0.1
means 10% more iteration time, or 10% less throughput. `estimates` computes its interval and p-value.

- `regression`: the change is above the tolerance, and differs from it at a level of 5%. The level is corrected for all
  changes that are judged together (Holm). Without a tolerance the change is compared with 0. If no change of such a
  family is truly above the tolerance, one is found in at most one family of forty: the test has two sides with 2.5%
  each, and only one side makes a regression.
- `better`: the change is below 0, and differs from 0 by the same test. Only without a tolerance.
- `within tolerance`: the upper bound of the change's interval is at most the tolerance. This interval is not corrected
  for the number of changes. It need not be: a whole family is wrongly called within tolerance only if each of its
  changes that exceeds the tolerance is wrongly called so (Roger Berger, Technometrics 24, 1982).
- `undecided`: none of these.
- `cannot tell`: the change has no p-value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from multicard.answers.comparison.estimates import Estimate, estimates_of
from multicard.answers.comparison.pairs import COMPARED_MEASURES, Pair, SharedConfiguration, is_measured
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

OUTCOME = "outcome"  # stands for the measure in a change that is about how runs end
ONE_SESSION = "each side ran in a session of its own, which may be as far off"
# Repeats of each side that are advised if one repeat leaves the spread unknown. Two repeats would have an interval, but
# one so wide that there is hardly ever a verdict.
FEWEST_REPEATS = 3


@dataclass(frozen=True)
class Change:
    """A measure of one configuration on both sides, with its verdict. Made by `judge` and `lost_runs`."""

    configuration: str
    # A name of `COMPARED_MEASURES`, or `OUTCOME` if runs fail now that completed before.
    measure: str
    # Geometric means over repeats in the unit of `column`, or arithmetic ones if a value is not above 0. None without
    # values.
    a: float | None
    b: float | None
    # How much worse b is, as a share of a; below 0 if it is better. The 95% interval is that of this change alone, the
    # p-value is corrected for all changes. None if there is no ratio.
    change: Interval | None
    # Number of completed runs with the measure, in a and in b.
    repeats: tuple[int, int]
    # The docstring of the module explains the verdicts.
    verdict: ChangeVerdict
    reason: str | None = None
    # Column of measures.csv with the values; None if neither side has one.
    column: str | None = None


def judge(pairs: Sequence[Pair], tolerance: float | None) -> list[Change]:
    """Return the change of each pair with its verdict. All pairs are judged together, each against the tolerance.

    `tolerance`: the share by which b may be worse; None to judge every difference.

    >>> slower = Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09], ([1, 1, 1], [1, 1, 1]))
    >>> [(change.verdict, round(change.change.value, 3)) for change in judge([slower], 0.03)]
    [('regression', 0.1)]
    """
    estimates = estimates_of(pairs, tolerance)
    tested = [estimate for estimate in estimates if estimate.ratio is not None and estimate.ratio.p_value is not None]
    return [_change(estimate, tolerance, comparisons=len(tested)) for estimate in estimates]


def lost_runs(shared: SharedConfiguration) -> Change | None:
    """Return a regression if runs of a configuration fail now that did not before, else None.

    The configuration was measured before, and now a run fails. In addition, either no run failed before, or no run is
    measured now. If some runs failed before and some are measured now, how many fail may be chance.
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
    """Return the change that an estimate shows. `comparisons`: how many estimates are tested together."""
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
    """Return the geometric mean; the arithmetic mean if a value is not above 0; None without values."""
    if len(values) == 0:
        return None
    return geometric_mean(values) or float(np.mean(values))


def _verdict(change: Interval | None, tolerance: float | None) -> ChangeVerdict:
    """Return the verdict on a change. Its p-value tests whether it differs from the tolerance, without one from 0."""
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
    """Return why a change cannot be judged, or why it is undecided although its interval lies above the tolerance.

    None for other changes. `comparisons`: how many changes are tested together.
    """
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
    # A meter whose counter rises in coarse steps may show 0 for a short window.
    if min(*pair.a, *pair.b) <= 0:
        return f"{pair.measure} is 0 in a repeat, so there is no ratio"
    # A clock with coarse steps may show the same time for all repeats.
    if min(count_a, count_b) > 1:
        return f"{pair.measure}: {EQUAL_REPEATS}"
    single = [side for side, count in (("a", count_a), ("b", count_b)) if count == 1]
    return f"one repeat ({' and '.join(single)}), so no spread is known: run {FEWEST_REPEATS} or more of each"
