"""Match the calls of collectives between the ranks that took part in them. The ranks may be in one trace or in several.

In this module a rank is a device of a process of a trace. The communicator shows which ranks belong together; if it was
not recorded, the times of their calls show that (`process_groups`). Within such a group, calls of several ranks belong
together if they have the same sequence number; if sequence numbers were not recorded, if they have the same position in
the order of the calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multicard.core.text import plural
from multicard.trace.events import Events, Location
from multicard.trace.matched_calls import CLOCK, DURATION, MatchedCalls, Matching
from multicard.trace.model import MISSING, Integers, Trace
from multicard.trace.process_groups import RankTimes, Unclear, groups_of

# Collectives that no rank can leave before all ranks have joined, and that all ranks leave together. A broadcast is not
# among them because its root may be done early. Sends and receives are between two ranks only and are not matched.
SYMMETRIC = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "barrier"}
POINT_TO_POINT = {"send", "recv"}

# At least this share of the matched calls must overlap in time, because a collective cannot end on one rank before all
# ranks have begun it. The share is below 1 because a few broadcasts and one-sided calls may do so.
MATCHED = 0.99
# On one clock, the first and the last end of a call may be apart by `ENDS_APART` times the transfer time, or by
# `LEAST_APART_NS` nanoseconds if that is more. The medians over all calls are compared.
ENDS_APART, LEAST_APART_NS = 0.5, 50_000

_NO_OVERLAP = "calls of {} do not overlap between ranks, so they do not belong together"


class _Pool(NamedTuple):
    """Calls of one collective with one communicator; `communicator` is None for calls whose communicator is unknown."""

    collective: str
    communicator: str | None


@dataclass(frozen=True)
class _Member:
    """Calls of one rank, or of one of its streams, that may belong to calls of other members.

    `events`: the positions of the calls among the events, in order of time.
    """

    rank: Location
    events: Integers


@dataclass(frozen=True)
class _Grouping:
    """Groups of members that belong together, and lines on why other members are in no group."""

    groups: list[list[_Member]]
    reasons: list[str]


def match_ranks(events: Events, traces: Sequence[Trace], on_host: bool = False) -> Matching:
    """Match the calls of all ranks.

    `events`: communication kernels as `messages.communication_kernels` returns them; if `on_host` is True, collectives
    as `host_collectives` returns them. The host's scheduler delays these by different times on each rank, so their ends
    need not agree.
    """
    matcher = _Matcher(events, traces, on_host)
    pools = _pools(events)
    # Symmetric collectives come first, because the groups of ranks that they show are used for the other collectives.
    for pool in sorted(pools, key=lambda pool: pool.collective not in SYMMETRIC):
        matcher.match(pool, pools[pool])
    return Matching(matcher.matched, list(dict.fromkeys(matcher.unmatched)))


def _pools(events: Events) -> dict[_Pool, list[_Member]]:
    """Return the members of each pool; pools, and the members of a pool, are sorted by their `str`.

    A member is a rank if the communicator is known. If not, it is a stream of a rank, because each communicator has a
    stream of its own. Sends, receives and calls of an unknown collective are left out.
    """
    codes_of_pool: dict[_Pool, dict[tuple[Any, ...], list[int]]] = {}
    described = events.group_fields("process", "device", "stream", "collective", "communicator")
    for code, (trace, process, device, stream, collective, communicator) in enumerate(described):
        if collective is None or collective in POINT_TO_POINT:
            continue
        member = (trace, process, device, stream if communicator is None else None)
        codes_of_member = codes_of_pool.setdefault(_Pool(collective, communicator), {})
        codes_of_member.setdefault(member, []).append(code)

    pools: dict[_Pool, list[_Member]] = {}
    for pool in sorted(codes_of_pool, key=str):
        codes_of_member = codes_of_pool[pool]
        members: list[_Member] = []
        for member in sorted(codes_of_member, key=str):
            rank = member[:3]
            calls = events.of_groups(codes_of_member[member], events.positions(rank))
            members.append(_Member(rank, events.in_time_order(calls)))
        pools[pool] = members
    return pools


class _Matcher:
    """Matches one pool after another, and collects the matched calls and lines about problems."""

    def __init__(self, events: Events, traces: Sequence[Trace], on_host: bool) -> None:
        self._events = events
        self._traces = traces
        self._on_host = on_host
        # The groups of ranks between which symmetric collectives were matched, each group once.
        self._groups: dict[tuple[Location, ...], None] = {}
        self.matched: list[MatchedCalls] = []
        self.unmatched: list[str] = []

    def match(self, pool: _Pool, members: list[_Member]) -> None:
        """Match the calls of a pool between its ranks, if there are several ranks."""
        if len({member.rank for member in members}) < 2:
            return
        if pool.communicator is not None and not self._is_reused(pool.communicator, members):
            self._match_by_communicator(pool, members)
            return
        if not self._match_by_times(pool.collective, members):
            # If the calls on single streams cannot be matched, those on all streams of a rank together may be.
            by_rank = _by_rank(self._events, members)
            self._match_by_times(pool.collective, by_rank, report_failure=True)

    def _is_reused(self, communicator: str, members: list[_Member]) -> bool:
        """Return True if a name stands for several process groups: if more ranks use it than the largest of them has.

        Return False if any number of ranks is unknown.
        """
        sizes = set()
        for _, rank_count, name in self._events.group_fields("ranks", "communicator"):
            if name == communicator:
                sizes.add(rank_count)
        return None not in sizes and len(members) > max(sizes)

    def _match_by_communicator(self, pool: _Pool, members: list[_Member]) -> None:
        """Match the calls of one communicator: by sequence numbers if all calls have one, else by order."""
        sequences = [self._events.arrays["sequence"].take(member.events) for member in members]
        if all((numbers != MISSING).all() for numbers in sequences):
            # Calls that not all members have are left out.
            members = _in_all(members, sequences)
            if not len(members[0].events):
                self.unmatched.append(f"the ranks show different calls of {pool.collective}")
                return
        self._add(pool.collective, pool.communicator, members, is_certain=True)

    def _match_by_times(self, collective: str, members: list[_Member], report_failure: bool = False) -> bool:
        """Find groups of members by their times, and match the calls of each group by order.

        Return True if any calls were matched. `report_failure`: if no calls were matched, add lines on why to
        `unmatched`.
        """
        matched_before = len(self.matched)
        grouping = self._grouping(collective, members)
        for group in grouping.groups:
            # Two streams of one rank cannot both take part in its collective.
            ranks_differ = len({member.rank for member in group}) == len(group)
            if len(group) > 1 and ranks_differ:
                name = self._name(group) if len(grouping.groups) > 1 else None
                self._add(collective, name, group)
        has_matched = len(self.matched) > matched_before
        if has_matched or report_failure:
            self.unmatched += grouping.reasons
        if has_matched:
            for group in grouping.groups:
                if len(group) == 1:
                    name = self._name(group)
                    self.unmatched.append(f"no rank ends its calls of {collective} together with {name}")
        return has_matched

    def _grouping(self, collective: str, members: list[_Member]) -> _Grouping:
        """Return the groups of members; only members with equally many calls can belong together."""
        members_by_count: dict[int, list[_Member]] = {}
        for member in members:
            members_by_count.setdefault(len(member.events), []).append(member)
        groups: list[list[_Member]] = []
        reasons: list[str] = []
        if len(members_by_count) > 1:
            reasons.append(f"the ranks show different numbers of {collective}")
        for _, members_with_count in sorted(members_by_count.items()):
            grouping = self._grouping_of_equals(collective, members_with_count)
            groups += grouping.groups
            reasons += grouping.reasons
        return _Grouping(groups, reasons)

    def _grouping_of_equals(self, collective: str, members: list[_Member]) -> _Grouping:
        """Return the groups of members that all have equally many calls.

        If no two members clearly belong together, return no groups and a reason. A single member is a group.
        """
        if len(members) < 2:
            return _Grouping([members], [])
        if collective not in SYMMETRIC:
            return _Grouping(self._complete_groups(members), [])
        times: list[RankTimes] = []
        for member in members:
            starts, ends = self._times(member.events)
            times.append(RankTimes(starts, ends, self._clock(member.rank)))
        reason = f"no rank ends its calls of {collective} together with another one"
        try:
            groups = groups_of(times)
            if any(len(group) > 1 for group in groups):
                return _Grouping([[members[position] for position in group] for group in groups], [])
        except Unclear as unclear:
            reason = f"{collective}: {unclear}"
        has_one_clock = len({rank.clock for rank in times}) == 1
        if has_one_clock:
            starts_of_ranks = np.array([rank.starts for rank in times])
            ends_of_ranks = np.array([rank.ends for rank in times])
            if not _overlap(starts_of_ranks, ends_of_ranks):
                reason = _NO_OVERLAP.format(collective)
            # Ends on the host vary too much to show groups, so all members whose calls overlap are one group.
            elif self._on_host:
                return _Grouping([members], [])
        return _Grouping([], [reason])

    def _complete_groups(self, members: list[_Member]) -> list[list[_Member]]:
        """Return the members of each group that symmetric collectives showed, if all ranks of the group are members.

        If symmetric collectives showed no groups, return all members as one group.
        """
        if not self._groups:
            return [members]
        complete: list[list[_Member]] = []
        for ranks in self._groups:
            present = [member for member in members if member.rank in ranks]
            if len(present) == len(ranks):
                complete.append(present)
        return complete

    def _add(self, collective: str, group: str | None, members: list[_Member], is_certain: bool = False) -> None:
        """Add the calls of ranks that belong together; if their numbers or times contradict that, only a line on why.

        `is_certain`: True if the communicator shows that the ranks belong together, whatever their times are.
        """
        if len({len(member.events) for member in members}) > 1:
            self.unmatched.append(f"the ranks show different numbers of {collective}")
            return
        ranks = [member.rank for member in members]
        events = np.array([member.events for member in members])
        starts, ends = self._times(events)
        is_symmetric = collective in SYMMETRIC
        has_one_clock = len({self._clock(rank) for rank in ranks}) == 1
        has_one_trace = len({trace for trace, *_ in ranks}) == 1
        clocks_agree = has_one_clock and self._clocks_agree(collective, ranks, starts, ends)
        if not clocks_agree:
            if has_one_clock and (not is_symmetric or (has_one_trace and not is_certain)):
                self.unmatched.append(_NO_OVERLAP.format(collective))
                return
            if not is_symmetric:
                self.unmatched.append(
                    f"calls of {collective} need a common clock of the ranks: they do not all end together"
                )
                return
            if has_one_clock:
                self.unmatched.append(
                    f"the clocks of the ranks differ, by their calls of {collective}: waiting is told from durations"
                )
        by = CLOCK if clocks_agree else DURATION
        self.matched.append(MatchedCalls(collective, group, ranks, events, starts, ends, by))
        if is_symmetric:
            self._groups[tuple(ranks)] = None

    def _clocks_agree(self, collective: str, ranks: list[Location], starts: Integers, ends: Integers) -> bool:
        """Return True if the times of ranks with one clock agree: if calls overlap, and end together.

        Ends are compared only for symmetric collectives on devices, and only between traces: in one trace all times are
        of the same clock for certain.
        """
        if not _overlap(starts, ends):
            return False
        if self._on_host or collective not in SYMMETRIC or len({trace for trace, *_ in ranks}) == 1:
            return True
        # The shortest duration of a call is that of the rank that joined last: the time with all ranks there.
        transfers = (ends - starts).min(axis=0)
        ends_apart = ends.max(axis=0) - ends.min(axis=0)
        most_apart = max(LEAST_APART_NS, ENDS_APART * float(np.median(transfers)))
        return float(np.median(ends_apart)) <= most_apart

    def _times(self, events: Integers) -> tuple[Integers, Integers]:
        """Return the starts and ends of events."""
        return self._events.number("start", events), self._events.ends(events)

    def _clock(self, rank: Location) -> str:
        """Return the name of a rank's clock: the one that its trace names, else one that only this trace has."""
        clock = self._traces[rank[0]].clock
        return f"trace {rank[0]}" if clock is None else clock

    def _name(self, members: list[_Member]) -> str:
        """Return a name for a group of ranks: their rank numbers, or their process ids if any rank number is unknown.

        Such a name is "0, 1" or "processes 4242, 4243".
        """
        numbers: list[int] = []
        processes: list[int] = []
        for member in members:
            trace, process, _ = member.rank
            processes.append(process)
            if process in self._traces[trace].ranks:
                numbers.append(self._traces[trace].ranks[process])
        if len(numbers) < len(members):
            return f"{plural(len(processes), 'process')} {', '.join(map(str, processes))}"
        return ", ".join(map(str, sorted(numbers)))


def _overlap(starts: Integers, ends: Integers) -> bool:
    """Return True if at least the share `MATCHED` of the calls had begun on all ranks before they ended on any rank.

    `starts`, `ends`: a row for each rank and a column for each call. In the example the last rank begins the first call
    at 4, before the first rank ends it at 5. The last rank begins the second call at 12, before the first rank ends it
    at 15:

    >>> _overlap(np.array([[0, 10], [4, 12]]), np.array([[5, 15], [5, 15]]))
    True
    """
    last_begin = starts.max(axis=0)
    first_end = ends.min(axis=0)
    overlapping_share = (last_begin < first_end).mean()
    return bool(overlapping_share >= MATCHED)


def _by_rank(events: Events, members: list[_Member]) -> list[_Member]:
    """Return a member for each rank, with its calls on all streams in order of time."""
    streams: dict[Location, list[Integers]] = {}
    for member in members:
        streams.setdefault(member.rank, []).append(member.events)
    return [_Member(rank, events.in_time_order(np.concatenate(positions))) for rank, positions in streams.items()]


def _in_all(members: list[_Member], sequences: list[Integers]) -> list[_Member]:
    """Return the members with only the calls whose sequence numbers all members have, sorted by sequence number.

    Several calls of a member may have one number, such as the calls of a group. The first of them belongs to the first
    of each other member, the second to the second, and so on.

    In the example both members have the sequence numbers 2 and 3. These are the events 12 and 11 of the first member,
    and the events 20 and 21 of the second member:

    >>> members = [_Member((0, 1, 0), np.array([10, 11, 12])), _Member((0, 2, 0), np.array([20, 21]))]
    >>> sequences = [np.array([1, 3, 2]), np.array([2, 3])]
    >>> [member.events.tolist() for member in _in_all(members, sequences)]
    [[12, 11], [20, 21]]
    """
    keys_of_members = [_numbered(numbers) for numbers in sequences]
    shared_keys = keys_of_members[0]
    for keys in keys_of_members[1:]:
        shared_keys = np.intersect1d(shared_keys, keys)
    in_all: list[_Member] = []
    for member, keys in zip(members, keys_of_members, strict=True):
        order = np.argsort(keys)
        positions = np.searchsorted(keys.take(order), shared_keys)
        shared_events = member.events.take(order.take(positions))
        in_all.append(_Member(member.rank, shared_events))
    return in_all


def _numbered(numbers: Integers) -> Integers:
    """Return a key for each call: its sequence number, and in the lower 32 bits how often that number occurs before it.

    >>> _numbered(np.array([5, 5, 7])).tolist() == [(5 << 32) + 0, (5 << 32) + 1, (7 << 32) + 0]
    True
    """
    order = np.argsort(numbers, kind="stable")
    ordered = numbers.take(order).astype(np.int64)
    first_of_number = np.searchsorted(ordered, ordered)
    occurrence = np.arange(len(ordered)) - first_of_number
    keys = np.empty(len(ordered), np.int64)
    keys[order] = (ordered << 32) + occurrence
    return keys
