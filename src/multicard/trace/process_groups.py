"""Which ranks reduce among themselves, inferred from the times of their collectives if no communicator was recorded.

A collective such as an all-reduce ends on all of its ranks at about the same time, however early one of them joined.
So ranks belong together if the ends of their calls agree, one by one. Two groups that happen to run alike agree on
average only: their calls drift apart and together again.
"""

from typing import NamedTuple

import numpy as np

from multicard.trace.model import Integers

# The ends of one call may be apart by this part of its transfer's time, or by so many nanoseconds. NCCL's ranks end
# within the time of its last chunk of data; GPUs of one machine have clocks that differ by some 10 µs.
ENDS_APART = 0.05
LEAST_APART_NS = 20_000
# On average, they may be apart by this part of the transfer, or so many nanoseconds, if their clocks are the same.
OFFSET = 0.1
LEAST_OFFSET_NS = 100_000
# Part of the calls whose ends must agree; a rank may be held up for a moment.
AGREEING = 0.9
# Two ranks whose ends are apart by this multiple of what is allowed are certainly of different groups.
CERTAIN = 2.0
# A steady drift between two clocks is estimated from this many calls on.
TREND_CALLS = 10


class Unclear(Exception):
    """Raised if the times do not show which ranks belong together."""


class RankTimes(NamedTuple):
    """Starts and ends of the calls of one rank, in order, in nanoseconds, and the name of its clock."""

    starts: Integers
    ends: Integers
    clock: str


def groups_of(ranks: list[RankTimes]) -> list[list[int]]:
    """Return the groups of ranks that take part in each other's calls, by position, each in order.

    All ranks have the same number of calls, and the k-th of one belongs to the k-th of the other members of its group.
    A rank without partner is a group of its own.

    Raises `Unclear` if a rank neither clearly belongs to a group nor clearly does not.

    The calls of the first and the third rank end together, those of the second 9 and 5 ms later:

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
    """Return how far apart the ends of the calls of two ranks are, divided by how far apart they may be.

    A distance of up to 1 fits one group. It is that of the spread of the ends around the drift of the clocks, or, if
    the clocks are the same, that of their median offset if this is larger.

    >>> first = RankTimes(np.array([0, 0]), np.array([1_000_000, 5_000_000]), "a")
    >>> second = RankTimes(np.array([0, 0]), np.array([1_000_000, 5_040_000]), "a")
    >>> round(_distance(first, second), 2)  # each is 20 µs from the median, and may be 5 % of 3 ms
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
    """Return by how much two clocks differ at each call: a line through many differences, the median of few."""
    if len(apart) < TREND_CALLS:
        return float(np.median(apart))
    seconds = (times - times[0]) / 1e9
    slope, constant = np.polyfit(seconds, apart, 1)
    return slope * seconds + constant
