"""Calls of collectives that were matched between ranks, and how long each rank waited in them for the last one.

A rank is given by the location of its device: trace, process and device.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from multicard.trace.events import Location
from multicard.trace.model import Integers

# What shows which rank joined a call last: the starts, if all ranks have one clock, or the durations of the ranks'
# calls.
CLOCK, DURATION = "clock", "duration"


@dataclass(frozen=True)
class MatchedCalls:
    """Calls of one collective on the ranks that took part in all of them, made by `rank_matching.match_ranks`.

    `events`, `starts` and `ends` have a row for each rank of `ranks` and a column for each call. They hold the
    positions among the events, and the times in nanoseconds on the clock of the rank. `by`: `CLOCK` if all ranks have
    one clock and their times agree, else `DURATION`. `group`: the communicator. If no communicator was recorded it
    names the ranks, or is None if the times showed only one group.

    In the example rank 0 joins at 0 and rank 1 at 30, and both end at 40. So rank 0 waited for 30 ns and rank 1 for 0
    ns, and the transfer took 10 ns on both:

    >>> ranks = [(0, 4242, 0), (0, 4243, 1)]
    >>> starts, ends = np.array([[0], [30]]), np.array([[40], [40]])
    >>> matched = MatchedCalls("all_reduce", None, ranks, np.array([[5], [8]]), starts, ends, by=CLOCK)
    >>> matched.waits.tolist(), matched.transfers.tolist()
    ([[30], [0]], [[10], [10]])
    """

    collective: str
    group: str | None
    ranks: list[Location]
    events: Integers
    starts: Integers
    ends: Integers
    by: str

    @cached_property
    def waits(self) -> Integers:
        """Nanoseconds that each rank (row) waited in each call (column) for the last rank to join.

        By durations, a rank's wait is the duration of its call minus the shortest duration of that call on any rank.
        The rank with the shortest duration joined last, because the call ends on all ranks together.
        """
        if self.by == CLOCK:
            last_joined = self.starts.max(axis=0)
            return last_joined - self.starts
        durations = self.ends - self.starts
        return durations - durations.min(axis=0)

    @cached_property
    def transfers(self) -> Integers:
        """Nanoseconds that each call (column) took on each rank (row) after all ranks had joined, at least 0."""
        durations = self.ends - self.starts
        return np.maximum(durations - self.waits, 0)


class Matching(NamedTuple):
    """The result of `rank_matching.match_ranks`: the calls that could be matched, and lines about problems.

    `unmatched`: lines about calls that could not be matched, and about matched ranks whose clocks do not agree.
    """

    calls: list[MatchedCalls]
    unmatched: list[str]
