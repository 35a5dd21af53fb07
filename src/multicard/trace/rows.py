"""Rows of the activity tables, from the events of a capture; what a table needs of these is there.

A row names its trace by number; columns that it lacks are empty.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from multicard.core.layout import PHASES
from multicard.trace.api_calls import LAUNCH
from multicard.trace.captured_events import STEPS, CapturedEvents, summed
from multicard.trace.collect import Events
from multicard.trace.collectives import CannotTell, by_message_size, message_columns
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers, why_absent
from multicard.trace.statistics import Grouped, Statistics, statistics
from multicard.trace.steps import STEP
from multicard.trace.stragglers import straggler_rows, transfer_times

Rows = list[dict[str, Any]]


def _seconds(found: Statistics) -> dict[str, Any]:
    times = {name: getattr(found, name) for name in ("total", "mean", "median", "min", "max", "std")}
    in_seconds = {f"{name}_s": None if value is None else value / 1e9 for name, value in times.items()}
    return {"calls": found.calls, **in_seconds}


def _rows(found: Iterable[tuple[tuple[Any, ...], Statistics]], *names: str) -> Rows:
    """Rows of keys (trace, process, …) and their statistics, longest total first within a process."""
    ordered = sorted(found, key=lambda item: (item[0][0], str(item[0][1]), -item[1].total))
    return [dict(zip(("trace", "process", *names), key, strict=True)) | _seconds(found) for key, found in ordered]


def phases(capture: CapturedEvents) -> Rows:
    """Steps and phases, one row each."""
    marked = capture.marks.rows
    if not marked:
        raise CannotTell(f"no range is named {STEP}, {', '.join(PHASES[:-1])} or {PHASES[-1]}")
    if capture.scope == STEPS:
        windows = [capture.marks.window(row["trace"], row["process"]) for row in marked]
        marked = [row for row, (first, last) in zip(marked, windows, strict=True) if first <= row["start"] < last]
    origins: dict[int, int] = {}
    for row in marked:
        origins[row["trace"]] = min(origins.get(row["trace"], row["start"]), row["start"])
    return [
        {**row, "start_s": (row["start"] - origins[row["trace"]]) / 1e9, "duration_s": row["duration"] / 1e9}
        for row in marked
    ]


def sums(
    kind: str, fields: Mapping[str, str], only: Callable[[dict[str, Any]], bool] = lambda group: True
) -> Callable[[CapturedEvents], Rows]:
    """Statistics of the events of a kind per process and some fields of their groups, given by column.

    `only` says of the fields of a group whether to count it.
    """

    def make(capture: CapturedEvents) -> Rows:
        events: Events = getattr(capture, kind)
        values, taken = events.values("process", *fields.values()), list(map(only, events.described()))
        return _rows(summed(events.durations, events, lambda code: values[code] if taken[code] else None), *fields)

    return make


def communicate(group: dict[str, Any]) -> bool:
    """Whether kernels are those of collectives."""
    return group["class"] == "communication"


def launches(capture: CapturedEvents) -> Rows:
    """From launching calls to kernels, per device."""
    kernels = capture.kernels
    rows = []
    for place in sorted(kernels.places, key=str):
        start, begun, ended = (kernels.arrays[name][kernels.at(place)] for name in ("start", "call", "returned"))
        known = np.flatnonzero(begun != UNKNOWN)
        row = dict(zip(("trace", "process", "device"), place, strict=True))
        row |= {"kernels": len(start), "joined": len(known)}
        if len(known):
            for name, since in (("latency", begun), ("queue_delay", ended)):
                delays = start.take(known) - since.take(known)
                row |= {f"median_{name}_s": float(np.median(delays)) / 1e9, f"max_{name}_s": int(delays.max()) / 1e9}
        rows.append(row)
    return rows


def collectives(capture: CapturedEvents) -> Rows:
    """Communication kernels per collective."""
    kernels = capture.communication
    transfer = transfer_times(kernels, capture.matching)
    keys = kernels.values("process", "device", "collective")
    rows = _rows(summed(kernels.durations, kernels, lambda code: keys[code]), "device", "collective")
    for row in rows:
        key = tuple(row[name] for name in ("trace", "process", "device", "collective"))
        own = np.flatnonzero(kernels.mask(other == key for other in keys))
        row |= message_columns(kernels, own, transfer)
    return rows


def message_sizes(capture: CapturedEvents) -> Rows:
    """Communication kernels per collective, communicator and size of their messages."""
    kernels = capture.communication
    transfer = transfer_times(kernels, capture.matching)

    def row(place: dict[str, Any], own: Integers) -> dict[str, Any]:
        of_messages = message_columns(kernels, own, transfer)
        return place | of_messages | _seconds(statistics(kernels.arrays["duration"].take(own)))

    return [row(place, own) for place, own in by_message_size(kernels)]


def memory_operations(capture: CapturedEvents) -> Rows:
    """Copies and fills per direction and kind of host memory."""
    memory = capture.memory
    values = memory.values("process", "device", "operation", "host_memory")
    found = summed(memory.durations, memory, lambda code: values[code])
    recorded = memory.arrays["bytes"] >= 0  # a sum of nothing recorded is empty, not zero
    sizes = Grouped(memory.code[recorded], memory.arrays["bytes"][recorded])
    of_key = dict(summed(sizes, memory, lambda code: values[code]))
    rows = _rows(found, "device", "operation", "host_memory")
    for row in rows:
        size = of_key.get(tuple(row[name] for name in ("trace", "process", "device", "operation", "host_memory")))
        if size is not None:
            row["bytes"] = size.total
            row |= {f"{name}_bytes": getattr(size, name) for name in ("mean", "median", "min", "max", "std")}
            row["bandwidth_bytes_per_s"] = size.total / row["total_s"] if row["total_s"] > 0 else None
    return rows


def stragglers(capture: CapturedEvents) -> Rows:
    """Ranks side by side in each collective."""
    calls, unmatched = capture.matching
    if calls:
        capture.notices += [f"waiting for other ranks: {line}" for line in unmatched]
        return straggler_rows(calls)
    if unmatched:
        raise CannotTell("; ".join(unmatched))
    raise CannotTell(_why_no_stragglers(capture))


def _why_no_stragglers(capture: CapturedEvents) -> str:
    kernels = capture.communication
    if kernels is None:
        return why_absent(capture.traces, ["kernels"])
    named = any(collective is not None for _, collective in kernels.values("collective"))
    return "only one rank" if named else "the capture holds no collectives that are named"


def shares(capture: CapturedEvents) -> Rows:
    """The four shares, each of the total that NVIDIA's own report of that kind gives percentages of."""
    rows: Rows = []

    def add(share: str, of: str, kind: str, part: Callable[[dict[str, Any]], bool], *place: str) -> None:
        events = getattr(capture, kind)
        if events is None:
            return
        times = events.durations
        whole: dict[tuple[Any, ...], list[int]] = {}
        for code, (key, group) in enumerate(zip(events.values("process", *place), events.described(), strict=True)):
            if code in times and group.get("api") != "backtrace":  # which repeats another call
                sums = whole.setdefault(key, [0, 0])
                total = int(times.of([code]).sum(dtype=np.int64))
                sums[0] += total if part(group) else 0
                sums[1] += total
        for key, (own, total) in sorted(whole.items(), key=lambda item: str(item[0])):
            row = dict(zip(("trace", "process", *place), key, strict=True))
            row |= {"share": share, "total_s": own / 1e9, "of": of, "of_s": total / 1e9}
            rows.append(row | {"ratio": own / total if total else None})

    copies = "time of all memory operations on the device"
    add("host_to_device_copies", copies, "memory", lambda of: of["operation"] == "host_to_device", "device")
    calls = "time of all CUDA API calls of the process"
    add("kernel_launches", calls, "api", lambda of: bool(LAUNCH.match(of["name"])))
    add("synchronizations", calls, "api", lambda of: "Synchronize" in of["name"])
    add("nccl", "time of all kernels on the device", "kernels", communicate, "device")
    return rows
