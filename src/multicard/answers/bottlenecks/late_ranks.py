"""Ranks that the others wait for in collectives, by rows of the activity table `stragglers`.

A row is about one rank and one kind of collective, such as all_reduce. `calls` is the number of calls in which the rank
took part, `times_last` how often it was the last rank to join. `waited_s` are the seconds that it waited inside the
calls for the last rank to join, `together_s` the seconds after all ranks had joined.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.core.units import SECONDS, with_unit

Row = Mapping[str, Any]

# A rank stands out only if it is the last to join in more than this share of the collectives of its group.
LAST = 0.5
# It stands out only if another rank also waits for at least this share of the time of the capture, or of its steps.
WAITED = 0.01


class Rank(NamedTuple):
    """A rank of a capture: its report, process and device. The device is None for collectives on the host."""

    report: str
    process: int
    device: int | None


class _Member(NamedTuple):
    """A rank with the sums of its rows in one group. A group is a set of ranks that reduce among themselves."""

    name: str
    calls: int
    times_last: int
    waited_s: float
    # Seconds in collectives, waiting included.
    collectives_s: float


class _LateRank(NamedTuple):
    """A rank that stands out in its group.

    Such ranks are compared by the longest wait first, so the maximum is the one for which another rank waits longest.
    """

    longest_wait_s: float
    name: str
    sentence: str


def waiting_inside(rows: Iterable[Row]) -> dict[Rank, float]:
    """Return how many seconds each rank waited in total, inside collectives, for the last rank to join.

    If a rank waited in collectives of two groups at the same time, this time counts twice.
    """
    waited: dict[Rank, float] = defaultdict(float)
    for row in rows:
        waited[_rank_of(row)] += row["waited_s"]
    return dict(waited)


def late_rank(rows: Sequence[Row], span_s: float | None, steps: int | None = None) -> str | None:
    """Return a sentence on the rank that others wait for; None if no rank stands out.

    A rank stands out if it is the last to join in more than half of the collectives of its group (`LAST`), while at
    least one other rank of the group waits for 1% of `span_s` or more (`WAITED`). If ranks of several groups stand out,
    the sentence is about the group with the longest wait, and then says how many other ranks stand out.

    `span_s`: seconds that the capture, or its steps, take. If that is not known (None), the wait is compared with the
    time that the waiting rank spends in collectives. `steps`: number of steps in that time, by which waits are divided;
    None to state the waits in all.

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
    """Return the rank that the others of a group wait for; None if no rank stands out. `rows`: all of one group."""
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
    """Return a rank with the sums of its rows in one group. There is a row for each kind of collective."""
    return _Member(
        name=_name(rank, rows[0]["rank"]),
        calls=sum(row["calls"] for row in rows),
        times_last=sum(row["times_last"] for row in rows),
        waited_s=sum(row["waited_s"] for row in rows),
        collectives_s=sum(row["waited_s"] + row["together_s"] for row in rows),
    )


def _name(rank: Rank, number: int | None) -> str:
    """Return the name of a rank: its number, or if that is not known its process with its GPU or report."""
    if number is not None:
        return f"rank {number}"
    where = f"of {rank.report}" if rank.device is None else f"on GPU {rank.device}"
    return f"process {rank.process} {where}"


def _sentence(late: _Member, waiting: Sequence[_Member], steps: int | None) -> str:
    """Return a sentence on a late rank and how long others wait for it: per step if `steps` is known, else in all."""
    per = "per step" if steps else "in all"
    waits_s = sorted(member.waited_s / (steps or 1) for member in waiting)
    shortest, longest = with_unit(waits_s[0], SECONDS), with_unit(waits_s[-1], SECONDS)
    who = f"{waiting[0].name} waits" if len(waiting) == 1 else "the others wait"
    how_long = longest if shortest == longest else f"{shortest} to {longest}"
    return f"{late.name} is late in {late.times_last:,} of {late.calls:,} collectives; {who} {how_long} {per}"
