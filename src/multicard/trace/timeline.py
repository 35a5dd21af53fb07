"""The table `timeline`: where each device's time goes, in the capture or all steps together, and in every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.api_calls import GRAPH_LAUNCH, KERNEL_LAUNCH
from multicard.trace.captured_events import CAPTURE, STEPS, CapturedEvents
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
from multicard.trace.host import Host, loading_launches
from multicard.trace.idle import ANY_THREAD, CAUSES, ThreadActivity
from multicard.trace.launches import UNKNOWN, calling_threads
from multicard.trace.model import Integers
from multicard.trace.steps import ALWAYS, HOST, STEP, Steps

Row = dict[str, Any]
# The number of a trace, a process id and a thread id.
_Thread = tuple[Any, ...]

# Shares that need any of some kinds of events. Without kernels it is unknown when a device was idle. Profilers record
# copies together with kernels, so without copies the other shares still hold.
_NEEDED_EVENTS = {
    ("kernels", "graphs"): (*(share for share in SHARES if share not in ("span", "memory")), *CAUSES),
    ("memory",): ("memory",),
    ("api",): CAUSES,
}

_NO_STEPS = Steps(np.empty(0, np.int64), np.empty(0, np.int64), HOST)


def timeline(capture: CapturedEvents) -> list[Row]:
    """Return one row per device and scope: the capture, or all steps from first to last; then every single step.

    Processes that share a GPU have its rows together, under the first of them. A device's activity counts to the step
    during which it happens, whichever step launched it. The capture spans from the first to the last device event or
    step of a process. Starts count from the first step of the trace on a device, and are None without one; so is what a
    trace did not record.
    """
    devices = _Devices(capture)
    return [row for rows in in_parallel(devices.rows, gpus_of(capture)) for row in rows]


def gpus_of(capture: CapturedEvents) -> list[tuple[Location, ...]]:
    """Return the locations of each GPU: more than one where processes share it, as far as the trace identifies GPUs."""
    locations_of_gpu: dict[Any, list[Location]] = {}
    for location in capture.locations():
        # Without starts of events there are no devices, only the location ().
        if len(location) < 3:
            continue
        trace, process, device = location
        identity = capture.traces[trace].gpu_identities.get((process, device))
        gpu = location if identity is None else (trace, identity)
        locations_of_gpu.setdefault(gpu, []).append(location)
    return [tuple(locations) for locations in locations_of_gpu.values()]


@dataclass(frozen=True)
class _Window:
    """The time that the first row of a device is about, from `first` to `last`, with its scope and extent."""

    first: int
    last: int
    scope: str
    extent: str | None


class _Devices:
    """Makes the rows of each device of a capture; several threads may ask for rows at the same time."""

    # Each Host takes as much memory as the calls of its process, so only this many are kept.
    _HOSTS_KEPT = 2

    def __init__(self, capture: CapturedEvents) -> None:
        self._capture = capture
        self._kinds = [(events, _kinds_of(name, events)) for name, events in capture.on_device()]
        self._origins = _first_steps(capture)
        self._threads = [] if capture.api is None else calling_threads(capture.api)
        self._without_launches = _traces_without_launches(capture)
        self._host = lru_cache(self._HOSTS_KEPT)(self._new_host)

    def rows(self, locations: tuple[Location, ...]) -> list[Row]:
        """Return the rows of a GPU, which is at these locations: that of its window, then one for each step."""
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

        rows: list[Row] = []
        for number, start in enumerate(starts.tolist()):
            row: Row = {"trace": trace, "process": process, "device": device_number, "processes": len(locations)}
            if number == 0:
                row |= {"scope": window.scope, "extent": window.extent, "step": None}
                row |= {f"{cause}_call": function for cause, function in times.functions.items()}
            else:
                row |= {"scope": STEP, "extent": steps.extent, "step": number}
            row["start_s"] = None if origin is None else (start - origin) / 1e9
            for share, nanoseconds in shares.items():
                row[f"{share}_s"] = None if nanoseconds is None else nanoseconds[number] / 1e9
            rows.append(row)
        return rows

    def _device(self, locations: Sequence[Location], launches: Launches | None) -> Device:
        """Return all that ran at some locations."""
        start = self._joined(locations, "start")
        end = start + self._joined(locations, "duration")
        kinds: list[Integers] = []
        for location in locations:
            for events, kind_of_code in self._kinds:
                code_of_event = events.codes_at(location)
                kinds.append(kind_of_code.take(code_of_event))
        return Device(start, end, np.concatenate(kinds), launches)

    def _launches(self, locations: Sequence[Location]) -> Launches | None:
        """Return the launching calls of all that ran at some locations; None where these were not joined."""
        if not self._capture.linked:
            return None
        return Launches(
            call=self._joined(locations, "call"),
            returned=self._joined(locations, "returned"),
            thread=self._joined(locations, "thread"),
            by_graph=self._joined(locations, "by_graph") if self._capture.has_graph_launches else None,
        )

    def _joined(self, locations: Sequence[Location], name: str) -> Integers:
        """Return an array of all that ran at some locations."""
        parts = [self._capture.of_device(location, name) for location in locations]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _launching_threads(self, launches: Launches | None) -> list[_Thread]:
        """Return the threads that made some launching calls."""
        if launches is None:
            return []
        is_recorded = launches.call != UNKNOWN
        launches_of_thread = np.bincount(launches.thread[is_recorded])
        return [self._threads[number] for number in np.flatnonzero(launches_of_thread).tolist()]

    def _thread_activity(
        self, first_owner: Owner, launching: Sequence[_Thread], number: int, first: int, last: int
    ) -> ThreadActivity:
        """Return what a thread does, by its number in the array `thread` of device events.

        For `ANY_THREAD` it is what the process `first_owner` does between two moments, whichever of its threads.
        `launching` are the threads that launch onto the device.
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
        """Return the window of a device's first row: the capture's, or that of all steps in the scope `STEPS`."""
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
        """Return the nanoseconds of each share, None for those whose events the trace did not record."""
        shares = dict(times.nanoseconds)
        for event_kinds, dependent_shares in _NEEDED_EVENTS.items():
            # If the recorded calls launched no kernels, there were none.
            if "kernels" in event_kinds and trace in self._without_launches:
                continue
            is_recorded = any(self._capture.traces[trace].has(event_kind) for event_kind in event_kinds)
            if not is_recorded:
                shares |= dict.fromkeys(dependent_shares)
        return shares


def _first_steps(capture: CapturedEvents) -> dict[int, int]:
    """Return when the first step on any device of each trace began."""
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
    """Return the kind of activity of each group of "kernels", "memory" or "graphs"."""
    if event_kind == "graphs":
        return np.full(len(events.groups), GRAPH, np.int8)
    kinds: list[int] = []
    for group in events.group_dicts():
        if event_kind == "kernels":
            kinds.append(COMMUNICATION if group["class"] == "communication" else COMPUTE)
        else:
            kinds.append(MIGRATION if group["operation"].startswith("unified_") else MEMORY)
    return np.array(kinds, np.int8)
