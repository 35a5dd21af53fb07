"""By how much the newer of two sides differs: the ratio of each pair of values, with its interval and p-value.

A ratio is that of the geometric means of both sides. A t test of logarithms compares it with a limit. The scatter is
estimated from all configurations of both sides (`stats.pool`). Repeats of the two sides did not run in turn, so they
are not paired.

All repeats of one session share an offset, which their scatter does not show. So there are two ways to compare:

- By repeats, if both sides ran in one and the same session, if the measure does not depend on the session, or if there
  is no tolerance.
- Else by the means of sessions. They are paired if both sides have two or more sessions in common. Their scatter is
  known only if some configuration was measured in several sessions; if none was, the ratio has no p-value.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from multicard.answers.comparison.pairs import COMPARED_MEASURES, Pair
from multicard.answers.needed_repeats import NeededRepeats, needed_repeats
from multicard.stats.corrections import corrected
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool
from multicard.stats.samples import Sample, geometric_mean


@dataclass(frozen=True)
class Estimate:
    """The ratio of side `b` to side `a` of a pair. Its p-value tests it against a limit; None if no scatter is seen."""

    pair: Pair
    ratio: Interval | None  # None if a side has no values, or has a value that is not above 0
    # True if the repeats would have a p-value, but the sides ran in sessions that may differ by more than repeats do.
    # The interval is then that of the repeats.
    lacks_sessions: bool


def estimates_of(pairs: Sequence[Pair], tolerance: float | None) -> list[Estimate]:
    """Return the ratio of each pair, with p-values corrected for all of them.

    `tolerance`: the share by which b may be worse. Ratios are tested against 1 plus this share, or 1 less this share if
    less of a measure is worse. Without a tolerance they are tested against 1, by repeats, whatever the sessions are.
    """
    pairs_of_measures: dict[str, dict[int, Pair]] = defaultdict(dict)
    for index, pair in enumerate(pairs):
        pairs_of_measures[pair.measure][index] = pair
    estimates: dict[int, Estimate] = {}
    for measure, pairs_of_measure in pairs_of_measures.items():
        estimates |= _estimates_of_measure(measure, pairs_of_measure, tolerance)
    in_order = [estimates[index] for index in range(len(pairs))]
    ratios = corrected([estimate.ratio for estimate in in_order])
    return [replace(estimate, ratio=ratio) for estimate, ratio in zip(in_order, ratios, strict=True)]


def _estimates_of_measure(name: str, pairs: Mapping[int, Pair], tolerance: float | None) -> dict[int, Estimate]:
    """Return the estimates of all pairs of one measure, by their index in `pairs`.

    The values of one measure scatter alike, so its pairs share an estimate of the scatter.
    """
    measure = COMPARED_MEASURES[name]
    limit = 1 + measure.worse_sign * (tolerance or 0.0)
    counts_sessions = tolerance is not None and measure.differs_between_sessions
    # Such a measure is counted or computed, not timed. So repeats that are equal show that it does not scatter.
    is_exact = not measure.differs_between_sessions
    values = {index: (pair.a, pair.b) for index, pair in pairs.items()}
    session_means = {index: _session_means(pair) for index, pair in pairs.items()}
    looks = max((pair.looks for pair in pairs.values()), default=1)
    pool_of_values = _pool(values, is_exact, looks)
    pool_of_sessions = _pool(session_means, looks=looks)
    estimates = {}
    for index, pair in pairs.items():
        older = _Side(index, "a")
        newer = _Side(index, "b")
        by_repeats = pool_of_values.ratio(newer, older, limit)
        # The scatter of other configurations would give an interval even for a single repeat. But that repeat may have
        # been disturbed, so it gets none.
        if by_repeats is not None and min(pair.repeats) == 1:
            by_repeats = replace(by_repeats, low=None, high=None, coverage=None, p_value=None)
        by_sessions = None
        if counts_sessions:
            by_sessions = pool_of_sessions.ratio(newer, older, limit, single=True)
        estimates[index] = _estimate(pair, by_repeats, by_sessions, counts_sessions)
    return estimates


def needed_repeats_of(pairs: Sequence[Pair]) -> NeededRepeats | None:
    """Return how many repeats of each side would show a small change of the iteration time.

    None if it was not compared, if a side has a single repeat, or if the sides are not known to be of one session, so
    that the scatter of repeats does not decide.
    """
    timed = {
        index: (pair.a, pair.b)
        for index, pair in enumerate(pairs)
        if pair.measure == "iteration_time" and pair.is_of_one_session and min(pair.repeats) > 1
    }
    if not timed:
        return None
    # Both sides of all pairs show the scatter, and a mean is subtracted from each: like a sample more than there are.
    return needed_repeats(_pool(timed), 2 * len(timed) + 1)


class _Side(NamedTuple):
    """The key of a sample in a pool: the values of one side of a pair."""

    pair: int  # its index
    side: Literal["a", "b"]


def _pool(sides: Mapping[int, tuple[Sample, Sample]], is_exact: bool = False, looks: int = 1) -> Pool:
    """Return a pool of the samples of both sides of each pair, by their `_Side`. `sides`: the samples by index."""
    samples: dict[_Side, Sample] = {}
    for index, (older, newer) in sides.items():
        samples[_Side(index, "a")] = older
        samples[_Side(index, "b")] = newer
    return Pool(samples, exact=is_exact, looks=looks)


def _estimate(pair: Pair, by_repeats: Interval | None, by_sessions: Interval | None, counts_sessions: bool) -> Estimate:
    """Return the ratio that a pair is judged by: that of its repeats, or that of the means of its sessions.

    If sessions count but have no p-value, the ratio and interval of the repeats are returned, without a p-value.
    `counts_sessions`: True if there is a tolerance and the measure depends on the session.
    """
    if not counts_sessions or pair.is_of_one_session or by_repeats is None:
        return Estimate(pair, by_repeats, lacks_sessions=False)
    sessions_have_p_value = by_sessions is not None and by_sessions.p_value is not None
    if sessions_have_p_value:
        return Estimate(pair, by_sessions, lacks_sessions=False)
    untested = replace(by_repeats, p_value=None)
    return Estimate(pair, untested, lacks_sessions=by_repeats.p_value is not None)


def _session_means(pair: Pair) -> tuple[Sample, Sample]:
    """Return the geometric mean of each session of both sides.

    Both are empty if the sessions of the pair are not known, if it has no values, or if one is not above 0.
    """
    smallest = min((*pair.a, *pair.b), default=0)
    if pair.sessions is None or smallest <= 0:
        return {}, {}
    sessions_a, sessions_b = pair.sessions
    means_a = _means_of_sessions(pair.a, sessions_a)
    means_b = _means_of_sessions(pair.b, sessions_b)
    return means_a, means_b


def _means_of_sessions(values: Sequence[float], sessions: Sequence[int]) -> dict[int, float | None]:
    """Return the geometric mean of the values of each session, by rising number of the session."""
    values_of_session: dict[int, list[float]] = defaultdict(list)
    for value, session in zip(values, sessions, strict=True):
        values_of_session[session].append(value)
    rising = sorted(values_of_session)
    return {session: geometric_mean(values_of_session[session]) for session in rising}
