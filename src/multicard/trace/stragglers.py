"""Make the table `stragglers`: how long each rank waited in collectives for the last one, how often it was the last."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from multicard.core.values import Row
from multicard.trace.activity_row import ActivityRow
from multicard.trace.captured_events import CapturedEvents
from multicard.trace.collectives import CannotTell
from multicard.trace.events import Events, Location
from multicard.trace.matched_calls import MatchedCalls, Matching
from multicard.trace.model import MISSING, Integers, why_absent


class _Key(NamedTuple):
    """What a row of the table is about."""

    collective: str
    group: str | None
    rank: Location


def stragglers(capture: CapturedEvents) -> list[ActivityRow]:
    """Return the rows of the table `stragglers`: one for each collective, group of ranks and rank.

    If some collectives could be matched between ranks, lines about those that could not become notices of the capture.

    Raises `CannotTell` if no collective could be matched.
    """
    calls, unmatched = capture.matching
    if calls:
        capture.notices += [f"waiting for other ranks: {line}" for line in unmatched]
        return _rows(calls)
    if unmatched:
        raise CannotTell("; ".join(unmatched))
    raise CannotTell(_why_no_stragglers(capture))


def _why_no_stragglers(capture: CapturedEvents) -> str:
    kernels = capture.communication
    if kernels is None:
        return why_absent(capture.traces, ["kernels"])
    is_named = any(collective is not None for collective in kernels.group_field("collective"))
    return "only one rank" if is_named else "the capture holds no collectives that are named"


def _rows(calls: Sequence[MatchedCalls]) -> list[ActivityRow]:
    """Return a row for each collective, group and rank, sorted by the `str` of these.

    `times_last` counts the calls in which the rank waited 0 ns: it was the last to join, maybe together with others.
    """
    calls_of_key: dict[_Key, list[MatchedCalls]] = {}
    for matched in calls:
        for rank in matched.ranks:
            calls_of_key.setdefault(_Key(matched.collective, matched.group, rank), []).append(matched)
    return [_row(key, calls_of_key[key]) for key in sorted(calls_of_key, key=lambda key: str(tuple(key)))]


def _row(key: _Key, calls: Sequence[MatchedCalls]) -> ActivityRow:
    """Return the row of a rank; all calls are of one collective and group."""
    waits_of_calls: list[Integers] = []
    transfers_of_calls: list[Integers] = []
    for matched in calls:
        row_of_rank = matched.ranks.index(key.rank)
        waits_of_calls.append(matched.waits[row_of_rank])
        transfers_of_calls.append(matched.transfers[row_of_rank])
    waits = np.concatenate(waits_of_calls)
    transfers = np.concatenate(transfers_of_calls)
    trace, process, device = key.rank
    cells: Row = {
        "device": device,
        "collective": key.collective,
        "group": key.group,
        "ranks": len(calls[0].ranks),
        "by": calls[0].by,
        "calls": len(waits),
        "times_last": int((waits == 0).sum()),
        "waited_s": int(waits.sum()) / 1e9,
        "median_wait_s": float(np.median(waits)) / 1e9,
        "max_wait_s": int(waits.max()) / 1e9,
        "together_s": int(transfers.sum()) / 1e9,
    }
    return ActivityRow(trace, process, cells)


def transfer_times(events: Events, matching: Matching) -> Integers:
    """Return how many nanoseconds of each event came after all ranks had joined; `MISSING` if it was not matched.

    `matching`: the result of `match_ranks` for these events.
    """
    times = np.full(len(events.code), MISSING, np.int64)
    for matched in matching.calls:
        times[matched.events] = matched.transfers
    return times
