"""By how much the newer of two sides differs: the ratio of each pair of values, with its interval and p-value.

Ratios are of geometric means, and tested against a limit by a t test of logarithms, by the scatter of all
configurations of both sides (`stats.pool`). Repeats of the two sides did not run in turn, so they are not paired.

Repeats of one session share an offset that they do not show. Sides that ran in one and the same session are compared by
their repeats. Else means of sessions are compared, paired by the sessions that both sides have, by the scatter of these
means, if any configuration was measured in several sessions; otherwise nothing shows the scatter. Measures that do not
depend on the session are always compared by repeats, and so are all measures without a tolerance.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.analysis.comparison.pairs import COMPARED_MEASURES, Pair
from multicard.stats.corrections import corrected
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool
from multicard.stats.samples import Sample, geometric_mean


@dataclass(frozen=True)
class Estimate:
    """The ratio of side `b` to side `a` of a pair; its p-value is that of the limit, or None if nothing shows it."""

    pair: Pair
    ratio: Interval | None  # None if a side has no values, or one that is not above zero
    # True if the repeats would have a p-value, but the sides ran in sessions that may differ by more than repeats do.
    # The interval is then that of the repeats.
    lacks_sessions: bool


def estimates_of(pairs: Sequence[Pair], tolerance: float | None) -> list[Estimate]:
    """Return the ratio of each pair, with p-values corrected for all of them.

    `tolerance`: the share by which b may be worse, which is the limit that ratios are tested against. Without it that
    limit is 1, and sessions are left out of account.
    """
    estimates: dict[int, Estimate] = {}
    for measure in dict.fromkeys(pair.measure for pair in pairs):
        pairs_of_measure = {index: pair for index, pair in enumerate(pairs) if pair.measure == measure}
        estimates |= _estimates_of_measure(measure, pairs_of_measure, tolerance)
    in_order = [estimates[index] for index in range(len(pairs))]
    ratios = corrected([estimate.ratio for estimate in in_order])
    return [replace(estimate, ratio=ratio) for estimate, ratio in zip(in_order, ratios, strict=True)]


def _estimates_of_measure(name: str, pairs: Mapping[int, Pair], tolerance: float | None) -> dict[int, Estimate]:
    """Return the ratios of all pairs of one measure, which scatter alike."""
    measure = COMPARED_MEASURES[name]
    limit = 1 + measure.worse_sign * (tolerance or 0.0)
    counts_sessions = tolerance is not None and measure.differs_between_sessions
    # What no clock or meter measures is computed alike in each repeat: equal repeats show that it does not scatter.
    is_exact = not measure.differs_between_sessions
    repeats = _pool({index: (pair.a, pair.b) for index, pair in pairs.items()}, is_exact)
    session_means = _pool({index: _session_means(pair) for index, pair in pairs.items()})
    estimates = {}
    for index, pair in pairs.items():
        a, b = (index, "a"), (index, "b")
        by_repeats = repeats.ratio(b, a, limit)
        # A single repeat may have been disturbed, whatever the others show of the scatter.
        if by_repeats is not None and min(pair.repeats) == 1:
            by_repeats = replace(by_repeats, low=None, high=None, coverage=None, p_value=None)
        by_sessions = session_means.ratio(b, a, limit, single=True) if counts_sessions else None
        estimates[index] = _estimate(pair, by_repeats, by_sessions, counts_sessions)
    return estimates


def _pool(sides: Mapping[int, tuple[Sample, Sample]], is_exact: bool = False) -> Pool:
    """Return a pool in which both samples of each index have a key, the index with `a` or `b`."""
    samples: dict[tuple[int, str], Sample] = {}
    for index, (a, b) in sides.items():
        samples[index, "a"] = a
        samples[index, "b"] = b
    return Pool(samples, exact=is_exact)


def _estimate(pair: Pair, by_repeats: Interval | None, by_sessions: Interval | None, counts_sessions: bool) -> Estimate:
    """Return the ratio that a pair is judged by, out of that of its repeats and that of the means of its sessions."""
    if not counts_sessions or pair.is_of_one_session or by_repeats is None:
        return Estimate(pair, by_repeats, lacks_sessions=False)
    if by_sessions is not None and by_sessions.p_value is not None:
        return Estimate(pair, by_sessions, lacks_sessions=False)
    untested = replace(by_repeats, p_value=None)
    return Estimate(pair, untested, lacks_sessions=by_repeats.p_value is not None)


def _session_means(pair: Pair) -> tuple[Sample, Sample]:
    """Return the geometric mean of each session of both sides.

    There is none of a pair whose sessions are not known, or that has a value that is not above 0.
    """
    if pair.sessions is None or min((*pair.a, *pair.b), default=0) <= 0:
        return {}, {}
    sessions_a, sessions_b = pair.sessions
    return _means_of_sessions(pair.a, sessions_a), _means_of_sessions(pair.b, sessions_b)


def _means_of_sessions(values: Sequence[float], sessions: Sequence[int]) -> dict[int, float | None]:
    """Return the geometric mean of the values of each session, by rising number of the session."""
    values_of_session: dict[int, list[float]] = defaultdict(list)
    for value, session in zip(values, sessions, strict=True):
        values_of_session[session].append(value)
    return {session: geometric_mean(values_of_session[session]) for session in sorted(values_of_session)}
