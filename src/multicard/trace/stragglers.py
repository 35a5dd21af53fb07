"""Ranks side by side: how long each waited in collectives for the last one to join, and how often it came last."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from multicard.trace.collect import Events, Place
from multicard.trace.model import MISSING, Integers
from multicard.trace.rank_matching import MatchedCalls, Matching


def straggler_rows(calls: Sequence[MatchedCalls]) -> list[dict[str, Any]]:
    """Return one row per collective, group and rank.

    A rank is last in each call in which it does not wait at all.
    """
    parts: dict[tuple[str, str | None, Place], list[tuple[MatchedCalls, int]]] = {}
    for matched in calls:
        for position, rank in enumerate(matched.ranks):
            parts.setdefault((matched.collective, matched.group, rank), []).append((matched, position))
    rows = []
    for (collective, group, rank), own in sorted(parts.items(), key=lambda part: str(part[0])):
        waits = np.concatenate([matched.waits[position] for matched, position in own])
        transfers = np.concatenate([matched.transfers[position] for matched, position in own])
        first, _ = own[0]
        row = dict(zip(("trace", "process", "device"), rank, strict=True))
        row |= {"collective": collective, "group": group, "ranks": len(first.ranks), "by": first.by}
        row |= {"calls": len(waits), "times_last": int((waits == 0).sum()), "waited_s": int(waits.sum()) / 1e9}
        row |= {"median_wait_s": float(np.median(waits)) / 1e9, "max_wait_s": int(waits.max()) / 1e9}
        rows.append(row | {"together_s": int(transfers.sum()) / 1e9})
    return rows


def transfer_times(events: Events, matching: Matching) -> Integers:
    """Return how many nanoseconds of each event came after all ranks had joined; `MISSING` if it was not matched."""
    times = np.full(len(events.code), MISSING, np.int64)
    for matched in matching.calls:
        times[matched.events] = matched.transfers
    return times
