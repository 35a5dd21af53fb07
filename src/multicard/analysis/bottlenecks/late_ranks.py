"""Ranks that the others wait for in collectives, by the table `stragglers`."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from multicard.core.text import counted
from multicard.core.units import SECONDS, with_unit

# A rank stands out that is last in more than this part of the collectives that it shares with others, ...
LAST = 0.5
# ... if another rank waits for at least this part of the time that the capture or its steps span.
WAITED = 0.01

Rank = tuple[str, int, int | None]  # report, process and device


class _Member(NamedTuple):
    """A rank in one group of ranks that reduce among themselves, with the sums of its rows."""

    name: str
    calls: int
    times_last: int
    waited_s: float
    collectives_s: float  # waiting and all else in collectives


def waiting_inside(rows: Iterable[dict[str, Any]]) -> dict[Rank, float]:
    """Return how many seconds each rank waited inside collectives for the last one to join, in all of them.

    The keys are report, process and device; the device is None for collectives of the host. Where collectives of two
    groups ran at the same time, the seconds of both count.
    """
    waited: dict[Rank, float] = {}
    for row in rows:
        rank = (row["report"], row["process"], row["device"])
        waited[rank] = waited.get(rank, 0.0) + row["waited_s"]
    return waited


def late_rank(rows: Sequence[dict[str, Any]], span_s: float | None, steps: int | None = None) -> str | None:
    """Return a sentence on the rank that others wait for; None if no rank stands out.

    That is a rank which is the last to join in more than half of the collectives of its group (`LAST`), while at least
    one other rank of the group waits for 1 % of the time or more (`WAITED`). Of several groups the one with the longest
    wait is told, with the number of ranks that stand out in others.

    `span_s`: seconds that the capture, or its steps, take; None if that is not known: then what counts is the time that
    a rank spends in collectives. Waiting is given per step if the number of `steps` is known,
    else in all.

    >>> shared = {"report": "a", "device": 0, "collective": "all_reduce", "group": None, "calls": 119}
    >>> early = shared | {"process": 7, "rank": 0, "times_last": 32, "waited_s": 0.0339, "together_s": 0.01}
    >>> late = shared | {"process": 8, "rank": 1, "times_last": 87, "waited_s": 0.0019, "together_s": 0.01}
    >>> late_rank([early, late], span_s=1.0)
    'rank 1 is late in 87 of 119 collectives; rank 0 waits 33.9 ms in all'
    """
    standing_out: list[tuple[float, str, str]] = []  # longest wait for the rank, its name and the sentence
    for members in _groups(rows):
        late = max(members, key=lambda member: member.times_last)
        others = [member for member in members if member is not late]
        waits_most = max(others, key=lambda member: member.waited_s, default=late)
        longest_s = waits_most.waited_s
        least_s = WAITED * (waits_most.collectives_s if span_s is None else span_s)
        if late.times_last > LAST * late.calls and longest_s >= least_s and longest_s > 0:
            standing_out.append((longest_s, late.name, _sentence(late, others, steps)))
    if not standing_out:
        return None
    _, name, sentence = max(standing_out)
    more = len({other for _, other, _ in standing_out} - {name})
    if not more:
        return sentence
    return f"{sentence}; so {'is' if more == 1 else 'are'} {counted(more, 'rank')} of other groups"


def _groups(rows: Sequence[dict[str, Any]]) -> list[list[_Member]]:
    """Return the ranks of each group, those of all collectives of a group together."""
    sums: dict[str | None, dict[Rank, list[dict[str, Any]]]] = {}
    for row in rows:
        rank = (row["report"], row["process"], row["device"])
        sums.setdefault(row["group"], {}).setdefault(rank, []).append(row)
    return [
        [
            _Member(
                _name(rank, own[0]["rank"]),
                sum(row["calls"] for row in own),
                sum(row["times_last"] for row in own),
                sum(row["waited_s"] for row in own),
                sum(row["waited_s"] + row["together_s"] for row in own),
            )
            for rank, own in members.items()
        ]
        for members in sums.values()
    ]


def _name(rank: Rank, number: int | None) -> str:
    """Return the name of a rank: its number, or where that is not known its process and device."""
    report, process, device = rank
    if number is not None:
        return f"rank {number}"
    return f"process {process} of {report}" if device is None else f"process {process} on GPU {device}"


def _sentence(late: _Member, others: Sequence[_Member], steps: int | None) -> str:
    unit = "per step" if steps else "in all"
    waits = sorted(member.waited_s / (steps or 1) for member in others)
    least, most = with_unit(waits[0], SECONDS), with_unit(waits[-1], SECONDS)
    who = f"{others[0].name} waits" if len(others) == 1 else "the others wait"
    how_long = most if least == most else f"{least} to {most}"
    return f"{late.name} is late in {late.times_last:,} of {late.calls:,} collectives; {who} {how_long} {unit}"
