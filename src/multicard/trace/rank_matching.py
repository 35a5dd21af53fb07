"""Match the calls of collectives between the ranks that took part in them, be they in one trace or in one each.

A rank is a device of a process of a trace. Its calls belong to those of other ranks that have the same communicator and
sequence number, or, where these were not recorded, the same place in the order of the calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from multicard.core.text import plural
from multicard.trace.collect import Events, Place
from multicard.trace.model import MISSING, Integers, Trace
from multicard.trace.process_groups import RankTimes, Unclear, groups_of

CLOCK, DURATION = "clock", "duration"  # what tells who joined last

# Collectives that no rank can leave before all have joined, and that all leave together. Of a broadcast the root may
# be done early; sends and receives are between two ranks.
SYMMETRIC = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier"}
POINT_TO_POINT = {"send", "recv"}

# Part of the matched calls that must overlap in time: a collective cannot end on one rank before all have begun it.
# Broadcasts and one-sided calls can, for a few calls.
MATCHED = 0.99
# By how much the ends of ranks may differ on one clock, as a part of the transfer time, and at least.
ENDS_APART, LEAST_APART_NS = 0.5, 50_000

_NO_OVERLAP = "calls of {} do not overlap between ranks, so they do not belong together"


@dataclass(frozen=True)
class MatchedCalls:
    """Calls of one collective on the ranks that took part in all of them.

    `events`, `starts` and `ends` have a row per rank of `ranks` and a column per call: the positions among the events,
    and the times in nanoseconds on the clock of each rank. `by`: `CLOCK` if that is one clock, else `DURATION`.
    """

    collective: str
    group: str | None  # the communicator, or the ranks where several groups were told apart; None for the only group
    ranks: list[Place]
    events: Integers
    starts: Integers
    ends: Integers
    by: str

    @cached_property
    def waits(self) -> Integers:
        """Nanoseconds that each rank waited in each call for the last one to join.

        Without a common clock this is what its call lasted longer than the shortest one, since all end together.
        """
        if self.by == CLOCK:
            return self.starts.max(axis=0) - self.starts
        durations = self.ends - self.starts
        return durations - durations.min(axis=0)

    @cached_property
    def transfers(self) -> Integers:
        """Nanoseconds that each call took on each rank after all had joined."""
        return np.maximum(self.ends - self.starts - self.waits, 0)


class Matching(NamedTuple):
    """All calls that could be matched, and lines on those that could not, or not by a clock."""

    calls: list[MatchedCalls]
    unmatched: list[str]


class _Member(NamedTuple):
    """Calls of one rank that may belong to those of others: their positions among the events, in order of time."""

    rank: Place
    events: Integers


def match_ranks(events: Events, traces: Sequence[Trace], on_host: bool = False) -> Matching:
    """Match the calls of all ranks.

    `events`: communication kernels as `messages.communication_kernels` gives them, or with `on_host` the collectives of
    `host_collectives`, whose ends differ by what the host's scheduler adds.
    """
    matcher = _Matcher(events, traces, on_host)
    pools = _pools(events)
    # Groups of ranks that symmetric collectives show hold for the others, too.
    for (collective, communicator), members in sorted(pools.items(), key=lambda pool: pool[0][0] not in SYMMETRIC):
        matcher.match(collective, communicator, members)
    return Matching(matcher.found, list(dict.fromkeys(matcher.unmatched)))


def _pools(events: Events) -> dict[tuple[str, str | None], list[_Member]]:
    """Return the members that share a collective and a communicator, by these.

    Without a communicator each stream of a rank is a member: a communicator has a stream of its own.
    """
    codes: dict[tuple[str, str | None], dict[tuple[Any, ...], list[int]]] = {}
    described = events.values("process", "device", "stream", "collective", "communicator")
    for code, (*rank, stream, collective, communicator) in enumerate(described):
        if collective is not None and collective not in POINT_TO_POINT:
            member = (*rank, stream if communicator is None else None)
            codes.setdefault((collective, communicator), {}).setdefault(member, []).append(code)
    return {
        pool: [
            _Member(member[:3], _in_order(events, member[:3], own)) for member, own in sorted(members.items(), key=str)
        ]
        for pool, members in sorted(codes.items(), key=str)
    }


def _in_order(events: Events, rank: Place, codes: list[int]) -> Integers:
    """Return the positions of the events of some groups of a rank in the order of their starts."""
    own = events.at(rank)
    mine = np.flatnonzero(np.isin(events.code[own], codes)) + own.start
    return mine.take(np.argsort(events.arrays["start"].take(mine), kind="stable"))


class _Matcher:
    """The matched calls so far, and why others were not."""

    def __init__(self, events: Events, traces: Sequence[Trace], on_host: bool) -> None:
        self._events = events
        self._traces = traces
        self._on_host = on_host
        self._groups: set[tuple[Place, ...]] = set()  # of ranks, as symmetric collectives show them
        self.found: list[MatchedCalls] = []
        self.unmatched: list[str] = []

    def match(self, collective: str, communicator: str | None, members: list[_Member]) -> None:
        """Match the calls of one collective in one communicator, or in unknown ones."""
        if len({member.rank for member in members}) < 2:
            return
        if communicator is not None and not self._reused(communicator, members):
            self._match_known(collective, communicator, members)
        elif not self._match_unknown(collective, members):
            self._match_unknown(collective, _by_rank(self._events, members), complain=True)

    def _reused(self, communicator: str, members: list[_Member]) -> bool:
        """True if a name stands for several process groups, as more ranks use it than one group has."""
        sizes = {ranks for _, ranks, name in self._events.values("ranks", "communicator") if name == communicator}
        return None not in sizes and len(members) > max(sizes)

    def _match_known(self, collective: str, communicator: str, members: list[_Member]) -> None:
        sequences = [self._events.arrays["sequence"].take(member.events) for member in members]
        if all((numbers != MISSING).all() for numbers in sequences):
            members = _in_all(members, sequences)
            if not len(members[0].events):
                self.unmatched.append(f"the ranks show different calls of {collective}")
                return
        self._add(collective, communicator, members, is_known=True)

    def _match_unknown(self, collective: str, members: list[_Member], complain: bool = False) -> bool:
        """Find groups of ranks by their times, and match their calls by order; True if there are some."""
        before = len(self.found)
        reasons: list[str] = []
        counts = sorted({len(member.events) for member in members})
        if len(counts) > 1:
            reasons.append(f"the ranks show different numbers of {collective}")
        groups: list[list[_Member]] = []
        for count in counts:
            groups += self._groups_among(collective, [m for m in members if len(m.events) == count], reasons)
        for group in groups:
            if len({member.rank for member in group}) == len(group) > 1:
                self._add(collective, self._name(group) if len(groups) > 1 else None, group)
        matched = len(self.found) > before
        if matched:
            alone = [self._name(group) for group in groups if len(group) == 1]
            reasons += [f"no rank ends its calls of {collective} together with {name}" for name in alone]
        if complain or matched:
            self.unmatched += reasons
        return matched

    def _groups_among(self, collective: str, members: list[_Member], reasons: list[str]) -> list[list[_Member]]:
        """Return the groups of members with equally many calls; there are reasons if no two belong together."""
        if len(members) < 2:
            return [members]
        if collective not in SYMMETRIC:
            present = [[member for member in members if member.rank in group] for group in self._groups]
            complete = [own for own, group in zip(present, self._groups, strict=True) if len(own) == len(group)]
            return complete if self._groups else [members]
        times = [RankTimes(*self._times(member.events), self._clock(member.rank)) for member in members]
        why = f"no rank ends its calls of {collective} together with another one"
        try:
            groups = groups_of(times)
            if any(len(group) > 1 for group in groups):
                return [[members[position] for position in group] for group in groups]
        except Unclear as unclear:
            why = f"{collective}: {unclear}"
        if len({rank.clock for rank in times}) == 1:
            overlap = _overlap(np.array([rank.starts for rank in times]), np.array([rank.ends for rank in times]))
            if overlap and self._on_host:
                return [members]
            if not overlap:
                why = _NO_OVERLAP.format(collective)
        reasons.append(why)
        return []

    def _add(self, collective: str, group: str | None, members: list[_Member], is_known: bool = False) -> None:
        """Add the calls of ranks that belong together, unless their numbers or times speak against it.

        `is_known`: whether the ranks are known to belong together, whatever their times.
        """
        if len({len(member.events) for member in members}) > 1:
            self.unmatched.append(f"the ranks show different numbers of {collective}")
            return
        ranks = [member.rank for member in members]
        events = np.array([member.events for member in members])
        starts, ends = self._times(events)
        one_clock = len({self._clock(rank) for rank in ranks}) == 1
        agrees = one_clock and self._clocks_agree(collective, ranks, starts, ends)
        if not agrees and collective not in SYMMETRIC:
            needed = f"calls of {collective} need a common clock of the ranks: they do not all end together"
            self.unmatched.append(_NO_OVERLAP.format(collective) if one_clock else needed)
            return
        if one_clock and not agrees:
            one_trace = len({trace for trace, *_ in ranks}) == 1
            if one_trace and not is_known:
                self.unmatched.append(_NO_OVERLAP.format(collective))
                return
            self.unmatched.append(
                f"the clocks of the ranks differ, by their calls of {collective}: waiting is told from durations"
            )
        by = CLOCK if agrees else DURATION
        self.found.append(MatchedCalls(collective, group, ranks, events, starts, ends, by))
        if collective in SYMMETRIC:
            self._groups.add(tuple(ranks))

    def _clocks_agree(self, collective: str, ranks: list[Place], starts: Integers, ends: Integers) -> bool:
        """True if the times of ranks that should have one clock can be those of the same calls."""
        if not _overlap(starts, ends):
            return False
        if self._on_host or collective not in SYMMETRIC or len({trace for trace, *_ in ranks}) == 1:
            return True
        transfer = float(np.median((ends - starts).min(axis=0)))
        apart = float(np.median(ends.max(axis=0) - ends.min(axis=0)))
        return apart <= max(LEAST_APART_NS, ENDS_APART * transfer)

    def _times(self, events: Integers) -> tuple[Integers, Integers]:
        """Return the starts and ends of events."""
        starts = self._events.arrays["start"].take(events).astype(np.int64)
        return starts, starts + self._events.arrays["duration"].take(events).astype(np.int64)

    def _clock(self, rank: Place) -> str:
        """Return the name of a rank's clock, which is its trace's own unless the trace tells another."""
        clock = self._traces[rank[0]].clock
        return f"trace {rank[0]}" if clock is None else clock

    def _name(self, members: list[_Member]) -> str:
        """Return a name for a group of ranks: their numbers, or those of their processes."""
        numbers = [self._traces[trace].ranks.get(process) for trace, process, _ in (m.rank for m in members)]
        if None in numbers:
            processes = [str(process) for _, process, _ in (member.rank for member in members)]
            return f"{plural(len(processes), 'process')} {', '.join(processes)}"
        return ", ".join(map(str, sorted(numbers)))


def _overlap(starts: Integers, ends: Integers) -> bool:
    """True if nearly all calls have begun on all ranks before they end on any."""
    return bool((starts.max(axis=0) < ends.min(axis=0)).mean() >= MATCHED)


def _by_rank(events: Events, members: list[_Member]) -> list[_Member]:
    """Return members with all streams of a rank as one."""
    streams: dict[Place, list[Integers]] = {}
    for member in members:
        streams.setdefault(member.rank, []).append(member.events)
    merged = {rank: np.concatenate(own) for rank, own in streams.items()}
    starts = events.arrays["start"]
    return [_Member(rank, own.take(np.argsort(starts.take(own), kind="stable"))) for rank, own in merged.items()]


def _in_all(members: list[_Member], sequences: list[Integers]) -> list[_Member]:
    """Return members with those calls alone whose sequence numbers all have, in the order of these.

    Several calls with one number, as those of a group, are told apart by their order.
    """
    keys = [_numbered(numbers) for numbers in sequences]
    shared = keys[0]
    for own in keys[1:]:
        shared = np.intersect1d(shared, own)
    found = []
    for member, own in zip(members, keys, strict=True):
        order = np.argsort(own)
        found.append(_Member(member.rank, member.events.take(order.take(np.searchsorted(own.take(order), shared)))))
    return found


def _numbered(numbers: Integers) -> Integers:
    """Return a number for each call that is the same where sequence number and occurrence of it are.

    >>> _numbered(np.array([5, 5, 7])).tolist()
    [21474836480, 21474836481, 30064771072]
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers.take(order).astype(np.int64)
    occurrence = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    keys = np.empty(len(ordered), np.int64)
    keys[order] = (ordered << 32) + occurrence
    return keys
