"""Where each device's time goes: unions of intervals, never sums over streams."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.captured_events import CAPTURE, STEPS, CapturedEvents
from multicard.trace.collect import Events, Place
from multicard.trace.host import Host, loading_launches
from multicard.trace.idle import ANY_THREAD, CAUSES, Doing, Idleness, Openers, ThreadOf
from multicard.trace.intervals import NOTHING, Intervals, Measure, merged
from multicard.trace.launches import UNKNOWN, calling_threads
from multicard.trace.model import Integers
from multicard.trace.steps import ALWAYS, HOST, STEP, Steps

SHARES = (
    "span", "busy", "compute", "communication", "memory", "graphs", "overlapped", "exposed_communication", "idle",
)  # fmt: skip

KEPT = 2

# Kinds of activity on a device.
COMPUTE, COMMUNICATION, MEMORY, GRAPH, MIGRATION = range(5)
_MEMORY = (MEMORY, MIGRATION)


class Device:
    """What ran on one device, in order of time."""

    def __init__(self, start: Integers, end: Integers, kind: Integers, launches: "Launches | None" = None) -> None:
        """Take the times of all activity in any order, what kind it is, and the calls that launched it.

        `launches` is None when no calls were recorded.
        """
        self.first, self.last = int(start.min()), int(end.max())
        order = np.flatnonzero(end > start)
        starts = start.take(order)
        if (starts[1:] < starts[:-1]).any():
            order = order.take(np.argsort(starts, kind="stable"))
            starts = start.take(order)
        together = np.flatnonzero(starts[1:] == starts[:-1])
        if launches is not None and len(together):
            # Of those that begin together, the one launched first comes first.
            tied = np.union1d(together, together + 1)
            own = order.take(tied)
            order[tied] = own.take(np.lexsort((launches.call.take(own), starts.take(tied))))
        self._start, self._end, self._kind = starts, end.take(order), kind.take(order)
        self._launches, self._order = launches, order

    def between(
        self, starts: Integers, ends: Integers, thread_of: ThreadOf | None = None
    ) -> dict[str, list[int] | list[None]]:
        """Return the nanoseconds of each of `SHARES` and `CAUSES` within each [start, end).

        Busy is any activity. Overlapped is communication while the device also computes, exposed is communication
        while it does not, nor replays a graph of unknown content. Graphs count where no recorded kernel computes. Idle
        is the rest of the span; `idle.Idleness` divides it by cause. Causes are None when no calls were recorded.

        `thread_of` gives what a thread of the host does, by its number.
        """

        def length(*kinds: int) -> Integers:
            chosen = self._kind == kinds[0]
            for kind in kinds[1:]:
                chosen |= self._kind == kind
            return Measure(self._moments(chosen)).between(starts, ends)

        compute, communication, memory = length(COMPUTE), length(COMMUNICATION), length(*_MEMORY)
        has_graphs = bool((self._kind == GRAPH).any())
        computing = length(COMPUTE, GRAPH) if has_graphs else compute
        communicates = bool((self._kind == COMMUNICATION).any())
        kernels = length(COMPUTE, COMMUNICATION) if communicates else compute
        at_work = length(COMPUTE, COMMUNICATION, GRAPH) if communicates and has_graphs else kernels
        at_work = np.maximum(at_work, computing)
        busy, firsts = merged(self._start, self._end) if len(self._start) else (NOTHING, np.empty(0, np.int64))
        found: dict[str, Any] = {
            "span": ends - starts,
            "busy": Measure(busy).between(starts, ends),
            "compute": compute,
            "communication": communication,
            "memory": memory,
            "graphs": computing - compute,
            "overlapped": compute + communication - kernels,
            "exposed_communication": at_work - computing,
        }
        found["idle"] = found["span"] - found["busy"]
        self.functions: dict[str, str] = {}
        if self._launches is not None and thread_of is not None:
            openers = self._launches.openers(self._order, firsts, self._kind.take(firsts) == MIGRATION)
            first, last = int(starts.min()), int(ends.max())
            idleness = Idleness(busy, openers, thread_of, first, last)
            found |= idleness.between(starts, ends, found["idle"])
            self.functions = idleness.functions()
        listed = {name: values.tolist() for name, values in found.items()}
        return listed | {name: [None] * len(starts) for name in CAUSES if name not in listed}

    def _moments(self, chosen: Integers) -> Intervals:
        at = np.flatnonzero(chosen)
        return merged(self._start.take(at), self._end.take(at))[0] if len(at) else NOTHING


class Launches:
    """The launching call of each activity of a device: when it began and returned, by which thread.

    `call` and `returned` are `UNKNOWN` where the call was not recorded. `by_graph`, where there is one, says whether it
    replayed a CUDA graph, and so launched several activities.
    """

    def __init__(self, call: Integers, returned: Integers, thread: Integers, by_graph: Integers | None = None) -> None:
        self.call, self.returned, self.thread, self.by_graph = call, returned, thread, by_graph

    def openers(self, order: Integers, firsts: Integers, migrates: Integers) -> Openers:
        """Return the launches of those activities that open a busy interval.

        `order`: positions of the activities in order of time. `firsts`: which of these open an interval. The
        activities of one replay of a graph are those whose call began in the same nanosecond.
        """
        continues = np.zeros(len(firsts), bool)
        if self.by_graph is not None and self.by_graph.any():
            is_later = self.by_graph.take(order)
            of_graph = np.flatnonzero(is_later)
            _, begins = np.unique(self.call.take(order.take(of_graph)), return_index=True)
            is_later[of_graph.take(begins)] = False  # the first activity of each replay
            continues = is_later.take(firsts)
        own = order.take(firsts)
        return Openers(self.call.take(own), self.returned.take(own), self.thread.take(own), migrates, continues)


def timeline(capture: CapturedEvents) -> list[dict[str, Any]]:
    """Return one row per device and scope: the capture, or all steps from first to last; then every single step.

    Processes that share a GPU have its rows together, under the first of them. A device's activity counts to the step
    during which it happens, whichever step launched it. The capture spans from the first to the last device event or
    step of a process. Starts count from the first step of the trace on a device, and are None without one; so is what a
    trace did not record.
    """
    traces, marks, steps = capture.traces, capture.marks, capture.steps
    kinds = [(events, _kinds_of(name, events)) for name, events in capture.on_device()]
    origins: dict[int, int] = {}
    for (trace, _, _), own in steps.items():
        origins[trace] = min(origins.get(trace, own.window[0]), own.window[0])
    threads = [] if capture.api is None else calling_threads(capture.api)

    launching_nothing = _without_launches(capture)

    # What a process does takes as much memory as its calls, so only that of a few is kept.
    @lru_cache(KEPT)
    def host(owner: Place) -> Host:
        assert capture.api is not None
        loading = loading_launches(capture.kernels, owner)
        return Host(capture.api, capture.ranges, marks, owner, loading, capture.host_calls)

    def rows(places: tuple[Place, ...]) -> list[dict[str, Any]]:
        place = places[0]
        start, duration = (_joined(capture, places, name) for name in ("start", "duration"))
        kind = np.concatenate(
            [kind_of_group.take(own.code[own.at(place)]) for place in places for own, kind_of_group in kinds]
        )
        launches = None
        launching_threads: list[tuple[Any, ...]] = []  # onto this GPU
        if capture.linked:
            launches = Launches(*(_joined(capture, places, name) for name in ("call", "returned", "thread")))
            if capture.has_graph_launches:
                launches.by_graph = _joined(capture, places, "by_graph")
            used = np.flatnonzero(np.bincount(launches.thread[launches.call != UNKNOWN], minlength=1))
            launching_threads = [threads[number] for number in used.tolist()]

        def thread_of(number: int, first: int, last: int) -> Doing:
            if number == ANY_THREAD:
                of_process = host(place[:2])
                return Doing(of_process.any_thread(first, last), *of_process.outside())
            *owner, thread = threads[number]
            of_process = host(tuple(owner))
            launching = [other for *process, other in launching_threads if process == owner]
            return Doing(of_process.thread(thread), *of_process.outside(launching))

        device = Device(start, start + duration, kind, launches)
        own = steps.get(place, _NO_STEPS)
        around = marks.window(*place[:2]) if capture.scope == STEPS else ALWAYS
        if around == ALWAYS:
            first, last = device.first, device.last
            if len(own.starts):
                first, last = min(first, own.window[0]), max(last, own.window[1])
        else:
            first, last = own.window if len(own.starts) else around
        found = device.between(np.append(first, own.starts), np.append(last, own.ends), thread_of)
        where = dict(zip(("trace", "process", "device"), place, strict=True)) | {"processes": len(places)}
        origin = origins.get(place[0])
        starts = [None if origin is None else (start - origin) / 1e9 for start in (first, *own.starts.tolist())]
        for needed, shares in _NEED.items():
            if "kernels" in needed and place[0] in launching_nothing:
                continue  # that there are no kernels is known
            if not any(traces[place[0]].has(kind) for kind in needed):
                found |= {share: [None] * len(found["span"]) for share in shares}
        overall = {"scope": CAPTURE, "extent": None} if around == ALWAYS else {"scope": STEPS, "extent": own.extent}
        return [
            {**where, **({"scope": STEP, "extent": own.extent} if i else overall), "step": i or None}
            | {"start_s": starts[i]}
            | {f"{name}_s": None if values[i] is None else values[i] / 1e9 for name, values in found.items()}
            | ({} if i else {f"{cause}_call": function for cause, function in device.functions.items()})
            for i in range(1 + len(own.starts))
        ]

    return [row for table in in_parallel(rows, gpus_of(capture)) for row in table]


_NO_STEPS = Steps(np.empty(0, np.int64), np.empty(0, np.int64), HOST)

# Shares that cannot be told without any of some kinds of events. Without kernels nobody knows when a device was idle;
# copies are recorded with kernels, so without any the rest still holds.
_NEED = {
    ("kernels", "graphs"): (*(share for share in SHARES if share not in ("span", "memory")), *CAUSES),
    ("memory",): ("memory",),
    ("api",): CAUSES,
}


def gpus_of(capture: CapturedEvents) -> list[tuple[Place, ...]]:
    """Return the places of each GPU: more than one where processes share it, as far as the trace tells."""
    found: dict[Any, list[Place]] = {}
    for place in capture.places():
        if len(place) < 3:  # only durations were read
            continue
        trace, process, device = place
        identity = capture.traces[trace].gpu_identities.get((process, device))
        found.setdefault(place if identity is None else (trace, identity), []).append(place)
    return [tuple(places) for places in found.values()]


def _without_launches(capture: CapturedEvents) -> set[int]:
    """Return the traces whose calls were recorded and launched neither a kernel nor a graph."""
    if capture.api is None:
        return set()
    groups = capture.api.values("name")
    launching = {trace for trace, name in groups if KERNEL_LAUNCH.match(name) or GRAPH_LAUNCH.match(name)}
    return {trace for trace, _ in groups} - launching


def _kinds_of(name: str, events: Events) -> Integers:
    """Return the kind of activity of each group of events."""
    groups = events.described()
    if name == "kernels":
        kinds = [COMMUNICATION if group["class"] == "communication" else COMPUTE for group in groups]
    elif name == "memory":
        kinds = [MIGRATION if group["operation"].startswith("unified_") else MEMORY for group in groups]
    else:
        kinds = [GRAPH] * len(groups)
    return np.array(kinds, np.int8)


def _joined(capture: CapturedEvents, places: Sequence[Place], name: str) -> Integers:
    """Return a number of all that ran at some places."""
    parts = [capture.of_device(place, name) for place in places]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
