"""Ranks that the others wait for in collectives, by rows of the activity table `stragglers`.

A row is about one rank and one collective: in how many `calls` the rank took part, how often it was the last to join,
the seconds that it waited inside for the last one, and those after all had joined (`together_s`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.core.units import SECONDS, with_unit

Row = Mapping[str, Any]

# A rank stands out if it is last in more than this share of the collectives of its group, …
LAST = 0.5
# … and another rank waits for at least this share of the time that the capture or its steps span.
WAITED = 0.01


class Rank(NamedTuple):
    """A rank of a capture; the device is None for collectives of the host."""

    report: str
    process: int
    device: int | None


class _Member(NamedTuple):
    """A rank in one group of ranks that reduce among themselves, with the sums of its rows."""

    name: str
    calls: int
    times_last: int
    waited_s: float
    # Seconds in collectives, waiting included.
    collectives_s: float


class _LateRank(NamedTuple):
    """A rank that stands out in its group. The largest of several is the one that another rank waits for longest."""

    longest_wait_s: float
    name: str
    sentence: str


def waiting_inside(rows: Iterable[Row]) -> dict[Rank, float]:
    """Return how many seconds each rank waited inside collectives for the last one to join, in all of them.

    Where collectives of two groups ran at the same time, the seconds of both count.
    """
    waited: dict[Rank, float] = defaultdict(float)
    for row in rows:
        waited[_rank_of(row)] += row["waited_s"]
    return dict(waited)


def late_rank(rows: Sequence[Row], span_s: float | None, steps: int | None = None) -> str | None:
    """Return a sentence on the rank that others wait for; None if no rank stands out.

    That is a rank which is the last to join in more than half of the collectives of its group (`LAST`), while at least
    one other rank of the group waits for 1 % of the time or more (`WAITED`). Of several groups the sentence is about
    the one with the longest wait, with the number of ranks that stand out in others.

    `span_s`: seconds that the capture, or its steps, take; None if that is not known: then what counts is the time that
    a rank spends in collectives. Waiting is given per step if the number of `steps` is known, else in all.

    >>> shared = {"report": "a", "device": 0, "collective": "all_reduce", "group": None, "calls": 119}
    >>> early = shared | {"process": 7, "rank": 0, "times_last": 32, "waited_s": 0.0339, "together_s": 0.01}
    >>> late = shared | {"process": 8, "rank": 1, "times_last": 87, "waited_s": 0.0019, "together_s": 0.01}
    >>> late_rank([early, late], span_s=1.0)
    'rank 1 is late in 87 of 119 collectives; rank 0 waits 33.9 ms in all'
    """
    late_ranks = []
    for group in grouped(rows, lambda row: row["group"]).values():
        late = _late_in_group(group, span_s, steps)
        if late is not None:
            late_ranks.append(late)
    if not late_ranks:
        return None
    latest = max(late_ranks)
    names = {late.name for late in late_ranks}
    more = len(names) - 1
    if not more:
        return latest.sentence
    verb = "is" if more == 1 else "are"
    return f"{latest.sentence}; so {verb} {counted(more, 'rank')} of other groups"


def _late_in_group(rows: Sequence[Row], span_s: float | None, steps: int | None) -> _LateRank | None:
    """Return the rank that others of its group wait for; None if no rank stands out. `rows` are of one group."""
    members = [_member(rank, of_rank) for rank, of_rank in grouped(rows, _rank_of).items()]
    late = max(members, key=lambda member: member.times_last)
    waiting = [member for member in members if member is not late]
    if not waiting:
        return None
    waits_longest = max(waiting, key=lambda member: member.waited_s)
    longest_s = waits_longest.waited_s
    least_s = WAITED * (waits_longest.collectives_s if span_s is None else span_s)
    is_often_last = late.times_last > LAST * late.calls
    is_waited_for = longest_s >= least_s and longest_s > 0
    if not is_often_last or not is_waited_for:
        return None
    return _LateRank(longest_s, late.name, _sentence(late, waiting, steps))


def _rank_of(row: Row) -> Rank:
    return Rank(row["report"], row["process"], row["device"])


def _member(rank: Rank, rows: Sequence[Row]) -> _Member:
    """Return a rank with the sums of its rows, which are those of one group: one for each collective."""
    return _Member(
        name=_name(rank, rows[0]["rank"]),
        calls=sum(row["calls"] for row in rows),
        times_last=sum(row["times_last"] for row in rows),
        waited_s=sum(row["waited_s"] for row in rows),
        collectives_s=sum(row["waited_s"] + row["together_s"] for row in rows),
    )


def _name(rank: Rank, number: int | None) -> str:
    """Return the name of a rank: its number, or where that is not known its process and device."""
    if number is not None:
        return f"rank {number}"
    where = f"of {rank.report}" if rank.device is None else f"on GPU {rank.device}"
    return f"process {rank.process} {where}"


def _sentence(late: _Member, waiting: Sequence[_Member], steps: int | None) -> str:
    """Return a sentence on a late rank and how long the others of its group wait, per step if `steps` is known."""
    per = "per step" if steps else "in all"
    waits_s = sorted(member.waited_s / (steps or 1) for member in waiting)
    shortest, longest = with_unit(waits_s[0], SECONDS), with_unit(waits_s[-1], SECONDS)
    who = f"{waiting[0].name} waits" if len(waiting) == 1 else "the others wait"
    how_long = longest if shortest == longest else f"{shortest} to {longest}"
    return f"{late.name} is late in {late.times_last:,} of {late.calls:,} collectives; {who} {how_long} {per}"
