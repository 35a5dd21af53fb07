"""Activity tables: what a capture's events add up to."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from multicard.record.names import PHASES
from multicard.trace.capture import STEP, Capture, summed
from multicard.trace.collect import Progress
from multicard.trace.collectives import collectives
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Trace, why_absent
from multicard.trace.ranks import CannotTell, stragglers
from multicard.trace.statistics import Grouped, Statistics, by_group
from multicard.trace.timeline import CAUSES, SHARES, timelines

__all__ = ["ACTIVITIES", "STEP", "Activity", "Found", "activity_tables"]

Rows = list[dict[str, Any]]

_COUNTS = {
    "rank", "process", "device", "step", "calls", "bytes", "kernels", "joined", "min_bytes", "max_bytes", "times_last",
    "messages", "message_bytes", "ranks", "samples", "used_bytes",
}  # fmt: skip
_TEXTS = {
    "report", "phase", "api", "function", "kernel", "class", "grid", "block", "operation", "host_memory", "collective",
    "scope", "domain", "range", "share", "of", "pool", "metric",
}  # fmt: skip
_STATISTICS = ("calls", "total_s", "mean_s", "median_s", "min_s", "max_s", "std_s")
_SIZES = ("bytes", "mean_bytes", "median_bytes", "min_bytes", "max_bytes", "std_bytes", "bandwidth_bytes_per_s")
_MOST_POINTS = 1000  # of memory use over time, per device and pool

_LAUNCH = re.compile(r"(?:cuda|cu)(?:Launch|GraphLaunch)")


@dataclass(frozen=True)
class Activity:
    """One activity table.

    `events` are the kinds it is made of; it exists when all of them were recorded, or any of them if
    `any_will_do`; `needs` are kinds that are used where they are there. Every table has `report` (the trace that the
    row is from), `rank` (empty where the trace does not tell) and `process`. Statistics are over the calls of a row:
    total, mean, median, minimum, maximum and sample standard deviation of their durations in seconds. A total adds
    up calls that overlap; it is not wall time.
    """

    events: tuple[str, ...]
    columns: tuple[str, ...]
    make: Callable[[Capture], Rows]
    says: str
    needs: tuple[str, ...] = ()
    any_will_do: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns with their types."""
        return pa.schema([(name, _type(name)) for name in ("report", "rank", "process", *self.columns)])

    def why_absent(self, traces: Sequence[Trace]) -> str | None:
        """Why the traces do not give this table, None when they do."""
        there = [any(trace.has(kind) for trace in traces) for kind in self.events]
        enough = any(there) if self.any_will_do else all(there)
        return None if enough else why_absent(traces, self.events)


class Found(NamedTuple):
    """The rows of the tables that a capture gives, by name, and the reason for each that it does not."""

    rows: dict[str, Rows]
    absent: dict[str, str]

    def table(self, name: str) -> pa.Table:
        """One table with its columns; empty if the capture does not give it."""
        schema = ACTIVITIES[name].schema
        return pa.table({c: [row[c] for row in self.rows.get(name, [])] for c in schema.names}, schema)


def _type(column: str) -> pa.DataType:
    if column in _COUNTS:
        return pa.int64()
    return pa.string() if column in _TEXTS else pa.float64()


def activity_tables(
    traces: Sequence[Trace], only: Collection[str] | None = None, progress: Progress | None = None
) -> Found:
    """Give the tables that the traces of one capture have events for.

    Parameters
    ----------
    traces
        One file, or one per node or rank.
    only
        Names of the tables that are wanted, all by default: fewer need less time.
    progress
        Called with the number of events read since the last call, from several threads.

    Raises
    ------
    TraceError
        If a trace turns out to be damaged.
    """
    chosen = {name: activity for name, activity in ACTIVITIES.items() if only is None or name in only}
    absent = {name: reason for name, a in chosen.items() if (reason := a.why_absent(traces)) is not None}
    wanted = {kind for name, a in chosen.items() if name not in absent for kind in (*a.events, *a.needs)}
    capture = Capture(traces, wanted, progress)
    tables: dict[str, Rows] = {}
    for name, activity in chosen.items():
        if name not in absent:
            try:
                tables[name] = _complete(activity, activity.make(capture), traces)
            except CannotTell as reason:
                absent[name] = str(reason)
    return Found(tables, {name: absent[name] for name in chosen if name in absent})


def _complete(activity: Activity, rows: Rows, traces: Sequence[Trace]) -> Rows:
    """Rows with all columns of their table, in its order."""
    names = activity.schema.names
    for row in rows:
        trace = traces[row["trace"]]
        row |= {"report": trace.name, "rank": trace.ranks.get(row.get("process"))}
    return [{name: row.get(name) for name in names} for row in rows]


def _seconds(found: Statistics) -> dict[str, Any]:
    times = {name: getattr(found, name) for name in ("total", "mean", "median", "min", "max", "std")}
    in_seconds = {f"{name}_s": None if value is None else value / 1e9 for name, value in times.items()}
    return {"calls": found.calls, **in_seconds}


def _rows(found: Iterable[tuple[tuple[Any, ...], Statistics]], *names: str) -> Rows:
    """Rows of keys (trace, process, …) and their statistics, longest total first within a process."""
    ordered = sorted(found, key=lambda item: (item[0][0], str(item[0][1]), -item[1].total))
    return [dict(zip(("trace", "process", *names), key, strict=True)) | _seconds(found) for key, found in ordered]


def _phases(capture: Capture) -> Rows:
    if not capture.marked:
        raise CannotTell(f"no range is named {STEP}, {', '.join(PHASES[:-1])} or {PHASES[-1]}")
    origin = int(capture.ranges.arrays["start"].min())
    return [
        {**row, "start_s": (row["start"] - origin) / 1e9, "duration_s": row["duration"] / 1e9} for row in capture.marked
    ]


def _ranges(capture: Capture) -> Rows:
    return _rows(capture.summed("ranges", lambda code: capture.ranges.groups[code]), "domain", "range")


def _cuda_api(capture: Capture) -> Rows:
    return _rows(capture.summed("api", lambda code: capture.api.groups[code]), "api", "function")


def _synchronizations(capture: Capture) -> Rows:
    def waits(code: int) -> tuple[Any, ...] | None:
        group = capture.api.groups[code]
        return group if "Synchronize" in group[3] and group[2] != "backtrace" else None

    return _rows(capture.summed("api", waits), "api", "function")


def _kernels(capture: Capture) -> Rows:
    values = capture.kernels.values("process", "device", "name")
    found = capture.summed("kernels", lambda code: (*values[code][:3], capture.classes[code], values[code][3]))
    return _rows(found, "device", "class", "kernel")


def _kernel_shapes(capture: Capture) -> Rows:
    values = capture.kernels.values("process", "device", "name", "grid", "block")
    return _rows(capture.summed("kernels", lambda code: values[code]), "device", "kernel", "grid", "block")


def _kernel_classes(capture: Capture) -> Rows:
    values = capture.kernels.values("process", "device")
    return _rows(capture.summed("kernels", lambda code: (*values[code], capture.classes[code])), "device", "class")


def _launches(capture: Capture) -> Rows:
    kernels = capture.kernels
    places = kernels.values("process", "device")
    rows = []
    for place in sorted(set(places), key=str):
        mine = np.array([other == place for other in places], bool)[kernels.code]
        start = kernels.arrays["start"][mine]
        begun, ended = capture.launches.of(0, mine)
        known = begun != UNKNOWN
        row = dict(zip(("trace", "process", "device"), place, strict=True))
        row |= {"kernels": len(start), "joined": int(known.sum())}
        if known.any():
            for name, since in (("latency", begun), ("queue_delay", ended)):
                delays = start[known] - since[known]
                row |= {f"median_{name}_s": float(np.median(delays)) / 1e9, f"max_{name}_s": int(delays.max()) / 1e9}
        rows.append(row)
    return rows


def _collectives(capture: Capture) -> Rows:
    values = capture.kernels.values("process", "device")

    def communicates(code: int) -> tuple[Any, ...] | None:
        return (*values[code], capture.collectives[code]) if capture.classes[code] == "communication" else None

    rows = _rows(capture.summed("kernels", communicates), "device", "collective")
    return collectives(rows, capture.messages)


def _memory_operations(capture: Capture) -> Rows:
    memory = capture.memory
    found = capture.summed("memory", lambda code: memory.groups[code])
    recorded = memory.arrays["bytes"] >= 0  # a sum of nothing recorded is empty, not zero
    sizes = Grouped([by_group(memory.code[recorded], memory.arrays["bytes"][recorded])])
    of_key = dict(summed(sizes, memory, lambda code: memory.groups[code]))
    rows = _rows(found, "device", "operation", "host_memory")
    for row in rows:
        size = of_key.get(tuple(row[name] for name in ("trace", "process", "device", "operation", "host_memory")))
        if size is not None:
            row["bytes"] = size.total
            row |= {f"{name}_bytes": getattr(size, name) for name in ("mean", "median", "min", "max", "std")}
            row["bandwidth_bytes_per_s"] = size.total / row["total_s"] if row["total_s"] > 0 else None
    return rows


def _timeline(capture: Capture) -> Rows:
    communicates = [kind == "communication" for kind in capture.classes]
    return timelines(capture.kernels, capture.memory, capture.launches, communicates, capture.steps)


def _stragglers(capture: Capture) -> Rows:
    return stragglers(capture.traces, capture.kernels, capture.collectives)


def _shares(capture: Capture) -> Rows:
    """The four shares, each of the total that NVIDIA's own report of that kind gives percentages of."""
    rows: Rows = []

    api, memory = (own.groups if own else [] for own in (capture.api, capture.memory))
    repeated = {"api": {code for code, group in enumerate(api) if group[2] == "backtrace"}}

    def add(share: str, of: str, kind: str, part: Callable[[int], bool], *place: str) -> None:
        events = getattr(capture, kind)
        if events is None:
            return
        values = events.values("process", *place)
        whole: dict[tuple[Any, ...], list[int]] = {}
        for code, key in enumerate(values):
            if code in events.grouped and code not in repeated.get(kind, ()):
                sums = whole.setdefault(key, [0, 0])
                seconds = int(events.grouped.of([code]).sum(dtype=np.int64))
                sums[0] += seconds if part(code) else 0
                sums[1] += seconds
        for key, (own, total) in sorted(whole.items(), key=lambda item: str(item[0])):
            row = dict(zip(("trace", "process", *place), key, strict=True))
            row |= {"share": share, "total_s": own / 1e9, "of": of, "of_s": total / 1e9}
            rows.append(row | {"ratio": own / total if total else None})

    copies = "time of all memory operations on the device"
    add("host_to_device_copies", copies, "memory", lambda code: memory[code][3] == "host_to_device", "device")
    calls = "time of all CUDA API calls of the process"
    add("kernel_launches", calls, "api", lambda code: bool(_LAUNCH.match(api[code][3])))
    add("synchronizations", calls, "api", lambda code: "Synchronize" in api[code][3])
    kernels = "time of all kernels on the device"
    add("nccl", kernels, "kernels", lambda code: capture.classes[code] == "communication", "device")
    return rows


def _memory_use(capture: Capture) -> Rows:
    events = capture.memory_use
    rows = []
    for code, key in sorted(enumerate(events.groups), key=lambda item: str(item[1])):
        mine = events.code == code
        time, used = events.arrays["start"][mine], events.arrays["bytes"][mine]
        order = np.argsort(time, kind="stable")
        time, used = time[order], used[order]
        origin = int(events.arrays["start"].min())
        edges = np.unique(np.linspace(0, len(time), min(len(time), _MOST_POINTS) + 1).astype(int))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            at = first + int(np.argmax(used[first:last]))
            row = dict(zip(("trace", "process", "device", "pool"), key, strict=True))
            rows.append(row | {"start_s": (int(time[at]) - origin) / 1e9, "used_bytes": int(used[at])})
    return rows


def _metrics(capture: Capture) -> Rows:
    events = capture.metrics
    found = summed(events.grouped, events, lambda code: events.groups[code])
    return [
        {"trace": trace, "device": device, "metric": metric, "samples": s.calls}
        | {name: getattr(s, name) for name in ("mean", "median", "min", "max")}
        for (trace, device, metric), s in found
    ]


ACTIVITIES: dict[str, Activity] = {
    "phases": Activity(
        ("ranges",),
        ("step", "phase", "start_s", "duration_s"),
        _phases,
        "Steps and their phases in the profiled window, in order of time; step counts from 1 per process and is "
        "empty for a phase outside every step; start_s counts from the first range of the capture.",
    ),
    "ranges": Activity(
        ("ranges",),
        ("domain", "range", *_STATISTICS),
        _ranges,
        "NVTX ranges that the program marked, per name; numbered steps and single calls of an operator share a row.",
    ),
    "cuda_api": Activity(
        ("api",),
        ("api", "function", *_STATISTICS),
        _cuda_api,
        "Time that the host spends in calls of the CUDA runtime and driver, per function; rows of the api backtrace "
        "repeat calls that are counted in another row.",
    ),
    "synchronizations": Activity(
        ("api",),
        ("api", "function", *_STATISTICS),
        _synchronizations,
        "Time that the host spends waiting for a device, stream or event, per function.",
    ),
    "kernels": Activity(
        ("kernels",),
        ("device", "class", "kernel", *_STATISTICS),
        _kernels,
        "Time on the device, per kernel; its class is judged by its name.",
    ),
    "kernel_shapes": Activity(
        ("kernels",),
        ("device", "kernel", "grid", "block", *_STATISTICS),
        _kernel_shapes,
        "Time on the device, per kernel and launch shape: blocks in the grid, threads in a block.",
        needs=("shapes",),
    ),
    "kernel_classes": Activity(
        ("kernels",),
        ("device", "class", *_STATISTICS),
        _kernel_classes,
        "Time on the device, per class of kernels.",
    ),
    "launches": Activity(
        ("kernels", "api"),
        (
            "device",
            "kernels",
            "joined",
            "median_latency_s",
            "max_latency_s",
            "median_queue_delay_s",
            "max_queue_delay_s",
        ),
        _launches,
        "From the launching call to the kernel: latency from the start of the call, queue delay from its end "
        "(negative when the kernel starts before the call returns), over the kernels whose call was recorded.",
        needs=("launches", "starts"),
    ),
    "collectives": Activity(
        ("kernels",),
        (
            "device",
            "collective",
            *_STATISTICS,
            "messages",
            "message_bytes",
            "ranks",
            "bus_bandwidth_bytes_per_s",
        ),
        _collectives,
        "Time on the device in communication kernels, per collective; empty where the name does not tell which. It "
        "includes waiting for other ranks, so the bus bandwidth is a lower bound.",
        needs=("messages",),
    ),
    "stragglers": Activity(
        ("kernels",),
        ("device", "collective", "calls", "times_last", "waited_s", "median_wait_s", "max_wait_s", "together_s"),
        _stragglers,
        "Ranks side by side, on one clock: how long each waited in a collective for the last one, how often it was "
        "that itself, and its time with all of them there.",
        needs=("starts",),
    ),
    "memory_operations": Activity(
        ("memory",),
        ("device", "operation", "host_memory", *_STATISTICS, *_SIZES),
        _memory_operations,
        "Time on the device and bytes moved, per direction and kind of host memory; bandwidth is bytes by total time.",
    ),
    "memory_use": Activity(
        ("memory_use",),
        ("device", "pool", "start_s", "used_bytes"),
        _memory_use,
        "Device memory in use over time, after changes; the highest of neighbours where there are very many. nsys "
        "counts from the start of the capture, PyTorch all that its allocator holds.",
    ),
    "metrics": Activity(
        ("metrics",),
        ("device", "metric", "samples", "mean", "median", "min", "max"),
        _metrics,
        "Samples of the device's counters, in the metric's own unit; what was not sampled is not zero.",
    ),
    "timeline": Activity(
        ("kernels", "memory"),
        ("device", "scope", "step", *(f"{share}_s" for share in (*SHARES, *CAUSES))),
        _timeline,
        "Where each device's time goes, for the whole capture and per step, by unions of intervals.",
        needs=("ranges", "api", "launches", "starts"),
        any_will_do=True,
    ),
    "shares": Activity(
        ("api", "kernels", "memory"),
        ("device", "share", "total_s", "of", "of_s", "ratio"),
        _shares,
        "Four shares of summed time: copies to the device, kernel launches, synchronizations, NCCL; each says of what.",
        any_will_do=True,
    ),
}
