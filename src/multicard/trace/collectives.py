"""Collectives: their message sizes and bus bandwidth, and which rank arrives last while the others wait.

Sizes are known only as far as a trace holds them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multicard.trace.collect import Events, Place
from multicard.trace.model import Integers

# Bus bandwidth over algorithm bandwidth for n ranks, and the size that the algorithm bandwidth counts over the size
# of one rank's message: NVIDIA's nccl-tests, doc/PERFORMANCE.md.
_BUS: dict[str | None, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n * n,
    "reduce_scatter": lambda n: (n - 1) / n * n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}

# Part of the matched calls that must overlap in time: a collective cannot end on one rank before all have begun it.
# Broadcasts and one-sided calls can, for a few calls.
MATCHED = 0.99


class CannotTell(Exception):
    """The trace does not have what an answer needs; the message names it."""


def with_messages(rows: list[dict[str, Any]], messages: Events | None) -> list[dict[str, Any]]:
    """Add what the messages of each process and collective tell to the rows of its communication kernels.

    The bus bandwidth is given where each kernel has one message and the number of ranks is known and always the same.
    """
    if messages is None:
        return rows
    told = _by_process(messages)
    devices = Counter((row["trace"], row["process"], row["collective"]) for row in rows)
    for row in rows:
        key = (row["trace"], row["process"], row["collective"])
        if key not in told or devices[key] > 1:  # messages do not tell the device
            continue
        codes, ranks = told[key]
        sizes = _in_order(messages, key[:2], codes, "bytes")
        row |= {"messages": len(sizes), "message_bytes": int(sizes.sum()), "ranks": ranks}
        if ranks is not None and len(sizes) == row["calls"]:
            bandwidth = bus_bandwidth(row["collective"], row["message_bytes"], ranks, row["total_s"])
            row["bus_bandwidth_bytes_per_s"] = bandwidth
    return rows


def _by_process(messages: Events) -> dict[tuple[int, int, str], tuple[list[int], int | None]]:
    """Groups of messages by trace, process and collective, and their number of ranks where it is always the same."""
    found: dict[tuple[int, int, str], list[int]] = {}
    for code, (trace, process, kind, _) in enumerate(messages.groups):
        found.setdefault((trace, process, kind), []).append(code)
    ranks = {key: {messages.groups[code][3] for code in codes} for key, codes in found.items()}
    return {key: (codes, *ranks[key]) if len(ranks[key]) == 1 else (codes, None) for key, codes in found.items()}


def bus_bandwidth(collective: str | None, message_bytes: float, ranks: int, seconds: float) -> float | None:
    """Bytes per second that each rank's link would need to carry for such messages in that time, as nccl-tests has it.

    None for a collective that has no definition, and without ranks or time.

    >>> bus_bandwidth("all_reduce", 4000, 4, 0.008)
    750000.0
    """
    factor = _BUS.get(collective)
    return message_bytes * factor(ranks) / seconds if factor and ranks > 0 and seconds > 0 else None


def by_message_size(kernels: Events, messages: Events) -> list[tuple[dict[str, Any], Integers]]:
    """One row per device, collective and size of its messages, with the durations of those kernels.

    The calls of a collective are made in the order in which its kernels run, so that they are matched by it, where
    there are as many of both and the process has one device. Calls of one kind in several communicators at once may be
    matched wrongly.

    `kernels`: kernels with process, device, collective, start and duration; `messages`: calls with start and bytes.
    """
    told = _by_process(messages)
    ran: dict[tuple[int, int, str], dict[int | None, list[int]]] = {}
    for code, (trace, process, device, kind) in enumerate(kernels.values("process", "device", "collective")):
        if (trace, process, kind) in told:
            ran.setdefault((trace, process, kind), {}).setdefault(device, []).append(code)
    rows = []
    for (trace, process, kind), devices in sorted(ran.items(), key=str):
        of_messages, ranks = told[trace, process, kind]
        size = _in_order(messages, (trace, process), of_messages, "bytes")
        for device, codes in devices.items():
            duration = _in_order(kernels, (trace, process, device), codes, "duration")
            if len(devices) > 1 or len(duration) != len(size):
                continue
            for each in np.unique(size).tolist():
                own = duration[size == each]
                bandwidth = bus_bandwidth(kind, each * len(own), ranks or 0, int(own.sum(dtype=np.int64)) / 1e9)
                place = {"trace": trace, "process": process, "device": device, "collective": kind, "size_bytes": each}
                rows.append((place | {"ranks": ranks, "bus_bandwidth_bytes_per_s": bandwidth}, own))
    if not rows:
        raise CannotTell("no collective has one message for each of its kernels")
    return rows


def _in_order(events: Events, place: Place, codes: Sequence[int], name: str) -> Integers:
    """A number of the events of some groups of a place, in the order of their starts."""
    own = events.at(place)
    mine = np.flatnonzero(np.isin(events.code[own], codes))
    order = np.argsort(events.arrays["start"][own].take(mine), kind="stable")
    return events.arrays[name][own].take(mine.take(order))


def stragglers_of(kernels: Events) -> list[dict[str, Any]]:
    """One row per collective and rank: how long it waited for the last rank, and how often it was that itself.

    The calls of a kind are matched by their order, so all ranks must take part in each; where numbers of calls
    differ or matched calls do not overlap in time, that kind is left out.

    `kernels`: kernels with process, device, collective, start and duration. Those of one trace are on one clock.

    Raises `CannotTell` if no kind of collective can be matched.
    """
    places: dict[tuple[int, str], dict[tuple[int, int, int | None], list[int]]] = {}
    for code, (*place, kind) in enumerate(kernels.values("process", "device", "collective")):
        if kind is not None:
            places.setdefault((place[0], kind), {}).setdefault(tuple(place), []).append(code)
    if not places:
        raise CannotTell("the capture holds no collectives that are named")
    rows, unmatched = [], []
    for (_, kind), members in sorted(places.items()):
        if len(members) < 2:
            continue
        times = {place: _times(kernels, place, codes) for place, codes in sorted(members.items(), key=str)}
        if len({starts.shape for starts, _ in times.values()}) > 1:
            unmatched.append(f"the ranks show different numbers of {kind}")
            continue
        starts, ends = map(np.array, zip(*times.values(), strict=True))
        latest = starts.max(axis=0)
        if (latest < ends.min(axis=0)).mean() < MATCHED:
            unmatched.append(f"calls of {kind} do not overlap between ranks, so they do not belong together")
            continue
        for place, start, end in zip(times, starts, ends, strict=True):
            wait = latest - start
            row = dict(zip(("trace", "process", "device"), place, strict=True)) | {"collective": kind}
            row |= {"calls": len(start), "times_last": int((wait == 0).sum()), "waited_s": int(wait.sum()) / 1e9}
            row |= {"median_wait_s": float(np.median(wait)) / 1e9, "max_wait_s": int(wait.max()) / 1e9}
            rows.append(row | {"together_s": int((end - latest).sum()) / 1e9})
    if not rows:
        apart = len({trace for trace, _ in places}) > 1
        raise CannotTell("; ".join(unmatched) or ("each rank is in a file of its own" if apart else "only one rank"))
    return rows


def _times(kernels: Events, place: Place, codes: list[int]) -> tuple[Integers, Integers]:
    """Starts and ends of the kernels of some groups of a place in order of time."""
    start, duration = (_in_order(kernels, place, codes, name).astype(np.int64) for name in ("start", "duration"))
    return start, start + duration
