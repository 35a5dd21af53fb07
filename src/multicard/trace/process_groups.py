"""Infer from the times of collectives which ranks form a group; for traces in which no communicator was recorded.

A collective such as an all-reduce ends on all of its ranks at about the same time, however early one of the ranks
joined. So two ranks belong to one group if each call of one rank ends at about the same time as the corresponding call
of the other. The ends of two groups that run equally fast agree only on average, because their calls drift apart and
together again.
"""

from typing import NamedTuple

import numpy as np

from multicard.trace.model import Integers

# Within a group, the ends of a call on two ranks may be apart by `ENDS_APART` times the transfer time, or by
# `LEAST_APART_NS` nanoseconds if that is more; the drift of the clocks is subtracted first. NCCL's ranks end within the
# time that the last chunk of data takes, and the clocks of GPUs of one machine differ by some 10 µs.
ENDS_APART = 0.05
LEAST_APART_NS = 20_000
# If two ranks of a group have the same clock, the median of the differences of their ends may be up to `OFFSET` times
# the transfer time, or `LEAST_OFFSET_NS` nanoseconds if that is more.
OFFSET = 0.1
LEAST_OFFSET_NS = 100_000
# Share of the calls whose ends must agree. It is below 1 because a rank may be delayed for a moment.
AGREEING = 0.9
# Two ranks are certainly of different groups if their ends are apart by at least this many times what is allowed. They
# may be of one group up to 1 times; between the two, `groups_of` raises `Unclear`.
CERTAIN = 2.0
# With at least this many calls a steady drift between two clocks is estimated, with fewer only a constant offset.
TREND_CALLS = 10


class Unclear(Exception):
    """Raised if the times do not show which ranks belong together."""


class RankTimes(NamedTuple):
    """Starts and ends of the calls of one rank, in order, in nanoseconds, and the name of its clock."""

    starts: Integers
    ends: Integers
    clock: str


def groups_of(ranks: list[RankTimes]) -> list[list[int]]:
    """Return the groups of ranks, each as rising positions in `ranks`.

    All ranks must have the same number of calls. The k-th call of each rank is compared with the k-th call of the first
    rank of each group. A rank that fits no group becomes a group of its own.

    Raises `Unclear` if it is not clear whether a rank fits a group, or if it fits several groups.

    In the example the calls of the first and the third rank end together, and those of the second end 9 and 5 ms later:

    >>> ends = [np.array([10, 20]), np.array([19, 25]), np.array([10, 20])]
    >>> groups_of([RankTimes(end * 10**6 - 10**6, end * 10**6, "a") for end in ends])
    [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for position, rank in enumerate(ranks):
        fitting: list[list[int]] = []
        for group in groups:
            distance = _distance(ranks[group[0]], rank)
            if 1 < distance < CERTAIN:
                raise Unclear("the times of their ends do not tell which ranks belong together")
            if distance <= 1:
                fitting.append(group)
        if len(fitting) > 1:
            raise Unclear("the times of their ends do not tell which ranks belong together")
        if fitting:
            fitting[0].append(position)
        else:
            groups.append([position])
    return groups


def _distance(first: RankTimes, second: RankTimes) -> float:
    """Return how far apart the ends of two ranks' calls are, divided by how far apart they may be in one group.

    So ranks of one group have a distance of up to 1. Take the differences between the ends of corresponding calls, and
    for the transfer time the median, over all calls, of the shorter duration of the two ranks. There are two distances:

    - Each difference deviates from the drift of the clocks. The quantile `AGREEING` of these deviations is divided by
      the larger of `LEAST_APART_NS` and `ENDS_APART` times the transfer time.
    - The median of the differences is divided by the larger of `LEAST_OFFSET_NS` and `OFFSET` times the transfer time.

    Return the larger distance if both ranks have the same clock. If not, return the first one, because different clocks
    may have any offset.

    >>> first = RankTimes(np.array([0, 0]), np.array([1_000_000, 5_000_000]), "a")
    >>> second = RankTimes(np.array([0, 0]), np.array([1_000_000, 5_040_000]), "a")
    >>> round(_distance(first, second), 2)  # both are 20 µs from their median, and may be 150 µs from it, 5 % of 3 ms
    0.13
    """
    durations = np.minimum(first.ends - first.starts, second.ends - second.starts)
    transfer = float(np.median(durations))
    apart = (first.ends - second.ends).astype(np.float64)
    around_drift = np.abs(apart - _drift(apart, first.ends))
    spread = float(np.quantile(around_drift, AGREEING))
    distance = spread / max(LEAST_APART_NS, ENDS_APART * transfer)
    if first.clock != second.clock:
        return distance
    offset = abs(float(np.median(apart)))
    return max(distance, offset / max(LEAST_OFFSET_NS, OFFSET * transfer))


def _drift(apart: Integers, times: Integers) -> Integers | float:
    """Return the estimated difference of two clocks at each call, in nanoseconds.

    `apart`: the difference of the ends of each call on two ranks. `times`: the end of each call on one of them. With at
    least `TREND_CALLS` calls the estimate is a straight line through the differences, with fewer their median.
    """
    if len(apart) < TREND_CALLS:
        return float(np.median(apart))
    seconds = (times - times[0]) / 1e9
    slope, constant = np.polyfit(seconds, apart, 1)
    return slope * seconds + constant
