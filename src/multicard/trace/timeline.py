"""Make the table `timeline`: where each device's time goes, in the whole capture or all steps, and in each step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.core.values import Row
from multicard.trace.activity_row import ActivityRow
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.captured_events import CAPTURE, STEPS, CapturedEvents
from multicard.trace.code_loading import loading_launches
from multicard.trace.device_times import (
    COMMUNICATION,
    COMPUTE,
    GRAPH,
    MEMORY,
    MIGRATION,
    SHARES,
    Device,
    DeviceTimes,
    Launches,
)
from multicard.trace.events import Events, Location, Owner
from multicard.trace.host import Host
from multicard.trace.idle import ANY_THREAD, CAUSES, ThreadActivity
from multicard.trace.launches import UNKNOWN, calling_threads
from multicard.trace.model import Integers
from multicard.trace.steps import ALWAYS, HOST, STEP, Steps

# The number of a trace, a process id and a thread id.
_Thread = tuple[Any, ...]

# Columns of times that are None for a trace that recorded none of some kinds of events:
# - without kernels and graphs, all except "span" and "memory", because it is unknown when the device was busy;
# - without memory operations, only "memory". Profilers record copies together with kernels, so where there are kernels
#   and no copies, copies most likely did not happen, and the times of being busy and idle are right without them;
# - without API calls, the causes of idle time, because it is unknown what the host did.
_NEEDED_EVENTS = {
    ("kernels", "graphs"): (*(share for share in SHARES if share not in ("span", "memory")), *CAUSES),
    ("memory",): ("memory",),
    ("api",): CAUSES,
}

_NO_STEPS = Steps(np.empty(0, np.int64), np.empty(0, np.int64), HOST)


def timeline(capture: CapturedEvents) -> list[ActivityRow]:
    """Return the rows of each GPU: one about the capture or all steps together, and then one about each step.

    In the scope `STEPS` the first row of a GPU spans from the start of the first step to the end of the last one. In
    the scope `CAPTURE`, and if there are no steps, it spans from the first to the last event or step of the GPU.

    If several processes share a GPU, its rows are about all of them and name only the first process. The activity of a
    GPU counts to the step during which it runs, even if another step launched it.

    `start_s` counts from the earliest start of a step on any device of the same trace; it is None if no device of the
    trace has steps. A time is None if the trace did not record the events that it needs (`_NEEDED_EVENTS`).
    """
    devices = _Devices(capture)
    return [row for rows in in_parallel(devices.rows, gpus_of(capture)) for row in rows]


def gpus_of(capture: CapturedEvents) -> list[tuple[Location, ...]]:
    """Return the locations of each GPU, which are several if processes of one trace share the GPU.

    Where the trace does not identify the physical GPU, each location counts as a GPU of its own.
    """
    locations_of_gpu: dict[Any, list[Location]] = {}
    for location in capture.on_device.locations():
        # If only the durations of events were read, their devices are not known, and the location is ().
        if len(location) < 3:
            continue
        trace, process, device = location
        identity = capture.traces[trace].gpu_identities.get((process, device))
        gpu = location if identity is None else (trace, identity)
        locations_of_gpu.setdefault(gpu, []).append(location)
    return [tuple(locations) for locations in locations_of_gpu.values()]


@dataclass(frozen=True)
class _Window:
    """The time that the first row of a GPU is about, from `first` to `last` in nanoseconds, with its scope and extent.

    `extent` is None in the scope `CAPTURE`.
    """

    first: int
    last: int
    scope: str
    extent: str | None


class _Devices:
    """Makes the rows of each GPU of a capture; several threads may call `rows` at the same time."""

    # A `Host` takes as much memory as the calls of its process, so only this many are cached.
    _HOSTS_KEPT = 2

    def __init__(self, capture: CapturedEvents) -> None:
        self._capture = capture
        self._kinds = [(events, _kinds_of(name, events)) for name, events in capture.on_device.of_kind.items()]
        self._origins = _first_steps(capture)
        self._threads = [] if capture.api is None else calling_threads(capture.api)
        self._without_launches = _traces_without_launches(capture)
        self._host = lru_cache(self._HOSTS_KEPT)(self._new_host)

    def rows(self, locations: tuple[Location, ...]) -> list[ActivityRow]:
        """Return the rows of the GPU at these locations: one for its window, then one for each step.

        Steps and window are those of the first location.
        """
        first_location = locations[0]
        trace, process, device_number = first_location
        launches = self._launches(locations)
        device = self._device(locations, launches)
        steps = self._capture.steps.get(first_location, _NO_STEPS)
        window = self._window(first_location, device, steps)
        # The window comes first, then one step after the other.
        starts = np.append(window.first, steps.starts)
        ends = np.append(window.last, steps.ends)
        activity_of = partial(self._thread_activity, first_location[:2], self._launching_threads(launches))
        times = device.between(starts, ends, activity_of)
        shares = self._recorded_shares(trace, times)
        origin = self._origins.get(trace)

        rows: list[ActivityRow] = []
        for number, start in enumerate(starts.tolist()):
            cells: Row = {"device": device_number, "processes": len(locations)}
            if number == 0:
                cells |= {"scope": window.scope, "extent": window.extent, "step": None}
                cells |= {f"{cause}_call": function for cause, function in times.functions.items()}
            else:
                cells |= {"scope": STEP, "extent": steps.extent, "step": number}
            cells["start_s"] = None if origin is None else (start - origin) / 1e9
            for share, nanoseconds in shares.items():
                cells[f"{share}_s"] = None if nanoseconds is None else nanoseconds[number] / 1e9
            rows.append(ActivityRow(trace, process, cells))
        return rows

    def _device(self, locations: Sequence[Location], launches: Launches | None) -> Device:
        """Return a `Device` of all activity at some locations."""
        start = self._joined(locations, "start")
        end = start + self._joined(locations, "duration")
        kinds: list[Integers] = []
        for location in locations:
            for events, kind_of_code in self._kinds:
                code_of_event = events.codes_at(location)
                kinds.append(kind_of_code.take(code_of_event))
        return Device(start, end, np.concatenate(kinds), launches)

    def _launches(self, locations: Sequence[Location]) -> Launches | None:
        """Return the launching calls of all activity at some locations; None if the capture's calls were not joined."""
        if not self._capture.linked:
            return None
        return Launches(
            call=self._joined(locations, "call"),
            returned=self._joined(locations, "returned"),
            thread=self._joined(locations, "thread"),
            by_graph=self._joined(locations, "by_graph") if self._capture.on_device.has_graph_launches else None,
        )

    def _joined(self, locations: Sequence[Location], name: str) -> Integers:
        """Return the array `name` of all activity at some locations, one location after another."""
        parts = [self._capture.on_device.array_at(name, location) for location in locations]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _launching_threads(self, launches: Launches | None) -> list[_Thread]:
        """Return the threads that made the recorded calls among `launches`; none if `launches` is None."""
        if launches is None:
            return []
        is_recorded = launches.call != UNKNOWN
        launches_of_thread = np.bincount(launches.thread[is_recorded])
        return [self._threads[number] for number in np.flatnonzero(launches_of_thread).tolist()]

    def _thread_activity(
        self, first_owner: Owner, launching: Sequence[_Thread], number: int, first: int, last: int
    ) -> ThreadActivity:
        """Return what a thread of the host does.

        `number`: the number of the thread in the array `thread` of device events. For `ANY_THREAD`, return what any
        thread of the process `first_owner` does between the moments `first` and `last`. `launching`: the threads that
        launch onto the device.
        """
        if number == ANY_THREAD:
            host = self._host(first_owner)
            data, elsewhere = host.outside()
            return ThreadActivity(host.any_thread(first, last), data, elsewhere)
        trace, process, thread = self._threads[number]
        owner = (trace, process)
        host = self._host(owner)
        launching_of_process = [caller for *caller_owner, caller in launching if tuple(caller_owner) == owner]
        data, elsewhere = host.outside(launching_of_process)
        return ThreadActivity(host.thread(thread), data, elsewhere)

    def _new_host(self, owner: Owner) -> Host:
        capture = self._capture
        assert capture.api is not None
        loading = loading_launches(capture.kernels, owner)
        return Host(capture.api, capture.ranges, capture.marks, owner, loading, capture.host_calls)

    def _window(self, location: Location, device: Device, steps: Steps) -> _Window:
        """Return the window of a GPU's first row: in the scope `STEPS` that of all steps, else that of the capture.

        If the device has no steps, those of its process count, and else those of the whole trace. Without any steps it
        is the window of the capture.
        """
        trace, process, _ = location
        step_window = steps.window if len(steps.starts) else None
        marked = self._capture.marks.window(trace, process) if self._capture.scope == STEPS else ALWAYS
        if marked != ALWAYS:
            first, last = step_window or marked
            return _Window(first, last, scope=STEPS, extent=steps.extent)
        first = device.first
        last = device.last
        if step_window is not None:
            first_of_steps, last_of_steps = step_window
            first = min(first, first_of_steps)
            last = max(last, last_of_steps)
        return _Window(first, last, scope=CAPTURE, extent=None)

    def _recorded_shares(self, trace: int, times: DeviceTimes) -> dict[str, list[int] | None]:
        """Return the nanoseconds of each share, a number for each row; None if the trace did not record its events."""
        shares = dict(times.nanoseconds)
        for event_kinds, dependent_shares in _NEEDED_EVENTS.items():
            # If calls were recorded and none of them launched a kernel or graph, no kernels ran, so nothing is unknown.
            if "kernels" in event_kinds and trace in self._without_launches:
                continue
            is_recorded = any(self._capture.traces[trace].has(event_kind) for event_kind in event_kinds)
            if not is_recorded:
                shares |= dict.fromkeys(dependent_shares)
        return shares


def _first_steps(capture: CapturedEvents) -> dict[int, int]:
    """Return for each trace the earliest start of a step on any of its devices; traces without steps are left out."""
    origins: dict[int, int] = {}
    for (trace, _, _), steps in capture.steps.items():
        first, _ = steps.window
        origins[trace] = min(origins.get(trace, first), first)
    return origins


def _traces_without_launches(capture: CapturedEvents) -> set[int]:
    """Return the traces whose calls were recorded and launched neither a kernel nor a graph."""
    if capture.api is None:
        return set()
    with_calls: set[int] = set()
    with_launches: set[int] = set()
    for trace, name in capture.api.group_fields("name"):
        with_calls.add(trace)
        if KERNEL_LAUNCH.match(name) or GRAPH_LAUNCH.match(name):
            with_launches.add(trace)
    return with_calls - with_launches


def _kinds_of(event_kind: str, events: Events) -> Integers:
    """Return the kind of activity of each group of events, by code; `event_kind`: "kernels", "memory" or "graphs"."""
    if event_kind == "graphs":
        return np.full(len(events.groups), GRAPH, np.int8)
    kinds: list[int] = []
    if event_kind == "kernels":
        for class_name in events.group_field("class"):
            kinds.append(COMMUNICATION if class_name == "communication" else COMPUTE)
    else:
        for operation in events.group_field("operation"):
            kinds.append(MIGRATION if operation.startswith("unified_") else MEMORY)
    return np.array(kinds, np.int8)
