"""The one comparison of results: what became slower, faster or larger from one set to the next, and by how much.

A change is the ratio of geometric means less one, with a sign by which worse is above zero: 0.1 of an iteration time is
10% longer, of a throughput 10% less. It is told from a tolerance, or from no change where none is given, by a t test of
logarithms at 5%, by the scatter of all configurations of both sides (`stats.pool`), corrected for all that are judged
together (Holm). A change is a regression if it is worse than the tolerance
and differs from it. Where nothing is worse than the tolerance, at most one family in forty shows a regression, since
only one side of the test counts. It is within the tolerance if its own interval is, which is not corrected: to call all
of a family within it wrongly, each that is not has to be called so (Roger Berger, Technometrics 24, 1982).

Repeats of one session share an offset that they do not show. Sides that ran in the same sessions are compared within
them. Else the values are means of sessions, and their scatter tells, if any configuration was measured in several; or
nothing can be told. Memory does not depend on the session. Without a tolerance sessions are left out of account.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from multicard.analysis.evidence import Configuration
from multicard.analysis.scaling.speedup import RATES
from multicard.stats.corrections import corrected
from multicard.stats.interval import EQUAL_REPEATS, LEVEL, Interval
from multicard.stats.pool import Pool
from multicard.stats.samples import geometric_mean

REGRESSION, BETTER, UNDECIDED, WITHIN = "regression", "better", "undecided", "within tolerance"
CANNOT_TELL = "cannot tell"
Verdict = Literal["regression", "better", "undecided", "within tolerance", "cannot tell"]
OUTCOME = "outcome"  # the measure of a change of how runs end
ONE_SESSION = "each side ran in a session of its own, which may be as far off"
FEWEST_REPEATS = 3  # advised where nothing is known of the spread: two have an interval, and hardly ever a verdict


@dataclass(frozen=True)
class Measure:
    """What is compared: its columns, of which a run has one; whether more is worse; words for worse and better."""

    columns: tuple[str, ...]
    sign: int  # 1 where more is worse, else -1
    worse: str
    better: str
    of_session: bool = True  # whether sessions differ in it

    def of(self, configuration: Configuration) -> str | None:
        """The column that a configuration has, that of its workload's unit first."""
        unit = configuration.workload.unit
        columns = sorted(self.columns, key=lambda column: column not in (unit.throughput, unit.energy))
        return next((column for column in columns if configuration.values(column)), None)


MEASURES: dict[str, Measure] = {
    "iteration_time": Measure(("iteration_time_s",), 1, "slower", "faster"),
    "throughput": Measure(RATES, -1, "less throughput", "more throughput"),
    "speedup": Measure(("speedup",), -1, "less speed-up", "more speed-up"),
    "memory": Measure(("peak_memory_bytes",), 1, "more memory", "less memory", False),
    "energy": Measure(("energy_per_sample_j", "energy_per_token_j"), 1, "more energy", "less energy"),
    "accuracy": Measure(("test_accuracy",), -1, "lower accuracy", "higher accuracy", False),
    "loss": Measure(("test_loss", "loss_at_end"), 1, "higher loss", "lower loss", False),
}


@dataclass(frozen=True)
class Pair:
    """Values of a measure of one configuration, over the repeats of both sides.

    `sessions` has the session of each value of both; None where it is not known.
    """

    configuration: str
    measure: str
    a: Sequence[float]
    b: Sequence[float]
    sessions: tuple[Sequence[int], Sequence[int]] | None = None
    column: str | None = None


@dataclass(frozen=True)
class Change:
    """One measure (of `MEASURES`, or `OUTCOME` where runs that completed do not any more) of one configuration.

    `a`, `b`: geometric means over repeats, in the unit of `column`; None without values. `repeats`: completed runs with
    the measure, of both. `change`: by how much b is worse, as a share of a, with its own 95% interval; its p-value is
    corrected; None where there is no ratio. `verdict`: see the module; `better` only where there is no tolerance.
    """

    configuration: str
    measure: str
    a: float | None
    b: float | None
    change: Interval | None
    repeats: tuple[int, int]
    verdict: Verdict
    reason: str | None = None
    column: str | None = None


def judge(pairs: Sequence[Pair], tolerance: float | None) -> list[Change]:
    """Judge changes that are reported together, each against the tolerance.

    >>> slower = Pair("a", "iteration_time", [1.00, 1.01, 0.99], [1.11, 1.10, 1.09], ([1, 1, 1], [1, 1, 1]))
    >>> [(found.verdict, round(found.change.value, 3)) for found in judge([slower], 0.03)]
    [('regression', 0.1)]
    """
    ratios: dict[int, tuple[Interval | None, bool]] = {}
    for measure in {pair.measure for pair in pairs}:
        own = [index for index, pair in enumerate(pairs) if pair.measure == measure]
        limit = 1 + MEASURES[measure].sign * (tolerance or 0.0)
        ratios |= zip(own, _ratios([pairs[index] for index in own], limit, tolerance is not None), strict=True)
    adjusted = corrected([ratios[index][0] for index in range(len(pairs))])
    comparisons = max(1, sum(ratio is not None and ratio.p_value is not None for ratio in adjusted))
    return [
        _change(pair, ratio, tolerance, comparisons, ratios[index][1])
        for index, (pair, ratio) in enumerate(zip(pairs, adjusted, strict=True))
    ]


def _ratios(pairs: Sequence[Pair], limit: float, by_session: bool) -> list[tuple[Interval | None, bool]]:
    """Ratios of one measure, and whether sessions, where they count, hide what they tell.

    Such a ratio has the interval of the repeats within its sessions, and no p-value.
    """
    # What no clock or meter measures is computed alike in each repeat: equal repeats show that it does not scatter.
    exact = not MEASURES[pairs[0].measure].of_session
    within = Pool([values for pair in pairs for values in (pair.a, pair.b)], exact=exact)
    means = Pool([each for pair in pairs for each in _by_session(pair)])
    found = []
    for place, pair in enumerate(pairs):
        at = 2 * place + 1, 2 * place
        sets = [set(own) for own in pair.sessions] if pair.sessions else None
        together = sets and sets[0] == sets[1] and len(sets[0]) == 1
        if not by_session or not MEASURES[pair.measure].of_session or together:
            found.append((_of_repeats(within.ratio(*at, limit), pair), False))
        elif sets and (ratio := means.ratio(*at, limit, single=True)) and ratio.p_value is not None:
            found.append((ratio, False))
        else:
            ratio = _of_repeats(within.ratio(*at, limit), pair)
            hides_verdict = ratio is not None and ratio.p_value is not None
            found.append((ratio and replace(ratio, p_value=None), hides_verdict))
    return found


def _of_repeats(ratio: Interval | None, pair: Pair) -> Interval | None:
    """Return a ratio, without an interval where a side has one repeat: that may have been disturbed."""
    if ratio is None or min(len(pair.a), len(pair.b)) > 1:
        return ratio
    return replace(ratio, low=None, high=None, coverage=None, p_value=None)


def _by_session(pair: Pair) -> list[dict[int, float]]:
    """Geometric mean of each session of both sides; nothing where sessions are not known, or a value is not above 0."""
    if pair.sessions is None or min((*pair.a, *pair.b), default=0) <= 0:
        return [{}, {}]
    sides = (pd.Series(values).groupby(list(own)) for values, own in zip((pair.a, pair.b), pair.sessions, strict=True))
    return [{session: geometric_mean(values) for session, values in each} for each in sides]


def _change(pair: Pair, ratio: Interval | None, tolerance: float | None, comparisons: int, one_session: bool) -> Change:
    change = ratio and ratio.map(lambda times: MEASURES[pair.measure].sign * (times - 1))
    verdict, reason = UNDECIDED, None
    if change is None or change.p_value is None:
        verdict, reason = CANNOT_TELL, ONE_SESSION if one_session else _why_unknown(pair)
    elif change.value > (tolerance or 0.0) and change.p_value <= 1 - LEVEL:
        verdict = REGRESSION
    elif tolerance is None:
        verdict = BETTER if change.value < 0 and change.p_value <= 1 - LEVEL else UNDECIDED
    elif change.high is not None and change.high <= tolerance:
        verdict = WITHIN
    elif change.low is not None and change.low > tolerance:
        reason = f"may be chance among {comparisons} comparisons, while the interval is of this one alone"
    repeats = len(pair.a), len(pair.b)
    means = (None if len(each) == 0 else geometric_mean(each) or float(np.mean(each)) for each in (pair.a, pair.b))
    return Change(pair.configuration, pair.measure, *means, change, repeats, verdict, reason, pair.column)


def _why_unknown(pair: Pair) -> str:
    for side, values in (("a", pair.a), ("b", pair.b)):
        if len(values) == 0:
            return f"{pair.measure} was not measured in {side}"
    if min(*pair.a, *pair.b) <= 0:  # as of a meter that counts in steps longer than the window
        return f"{pair.measure} is 0 in a repeat, so there is no ratio"
    if min(len(pair.a), len(pair.b)) > 1:  # as of a clock that counts in coarse steps
        return f"{pair.measure}: {EQUAL_REPEATS}"
    sides = [side for side, values in (("a", pair.a), ("b", pair.b)) if len(values) == 1]
    return f"one repeat ({' and '.join(sides)}), so no spread is known: run {FEWEST_REPEATS} or more of each"
