"""Where each device's time goes: unions of intervals, never sums over streams."""

from functools import cache
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.trace.captured_events import CAPTURE, STEPS, CapturedEvents
from multicard.trace.collect import Place
from multicard.trace.host import elsewhere
from multicard.trace.intervals import FIRST, NOTHING, Intervals, Measure, intersection, merged
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers
from multicard.trace.steps import ALWAYS, HOST, STEP, Steps

SHARES = ("span", "busy", "compute", "communication", "memory", "overlapped", "exposed_communication", "idle")
CAUSES = ("idle_host_bound", "idle_host_elsewhere", "idle_collective", "idle_other")

COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2
_OF_CLASS = {"communication": COMMUNICATION}


class Device:
    """What ran on one device of one process, in order of time."""

    def __init__(self, start: Integers, end: Integers, kind: Integers, call: Integers | None) -> None:
        """Take it in any order: its times, what it is, and when the call began that launched it.

        `call` is `UNKNOWN` for one whose call was not recorded, and None when no calls were.
        """
        self.first, self.last = int(start.min()), int(end.max())
        order = np.flatnonzero(end > start)
        starts = start.take(order)
        if (starts[1:] < starts[:-1]).any():
            order = order.take(np.argsort(starts, kind="stable"))
            starts = start.take(order)
        if call is not None and (starts[1:] == starts[:-1]).any():
            # Of those that begin together, the one launched first comes first.
            order = order.take(np.lexsort((call.take(order), starts)))
        self._start, self._end, self._kind = starts, end.take(order), kind.take(order)
        self._call = None if call is None else call.take(order)

    def between(
        self, starts: Integers, ends: Integers, elsewhere: Intervals = NOTHING
    ) -> dict[str, list[int] | list[None]]:
        """Nanoseconds of each of `SHARES` and `CAUSES` within each [start, end).

        Busy is any activity; overlapped is communication while the device also computes, exposed is
        communication while it does not; idle is the rest of the span.

        An idle gap is judged by the activity that ends it. `idle_host_bound`: its launching call began only after
        the device had gone idle, and the host was launching work; `idle_host_elsewhere`: likewise, in the moments of
        `elsewhere`, when the host was busy with something else. `idle_collective`: it was launched in time and
        communicates, so the device waits for a collective to begin. `idle_other`: launched in time but started late
        for another reason, launch not recorded, or nothing follows. They are None when no calls were recorded.
        """

        def length(moments: Intervals) -> Integers:
            return Measure(moments).between(starts, ends)

        own = [self._kind == which for which in (COMPUTE, COMMUNICATION, MEMORY)]
        compute, communication, memory = (length(self._moments(each)) for each in own)
        kernels = length(self._moments(~own[MEMORY])) if own[COMMUNICATION].any() else compute
        busy, firsts = merged(self._start, self._end) if len(self._start) else (NOTHING, np.empty(0, np.int64))
        found: dict[str, Any] = {
            "span": ends - starts,
            "busy": length(busy),
            "compute": compute,
            "communication": communication,
            "memory": memory,
            "overlapped": compute + communication - kernels,
            "exposed_communication": kernels - compute,
        }
        found["idle"] = found["span"] - found["busy"]
        if self._call is not None:
            causes = _idle_causes(busy, self._call[firsts], self._kind[firsts] == COMMUNICATION)
            host, collective, away = map(length, (*causes, intersection(causes[0], elsewhere)))
            found |= dict(zip(CAUSES, (host - away, away, collective, found["idle"] - host - collective), strict=True))
        listed = {name: values.tolist() for name, values in found.items()}
        return listed | {name: [None] * len(starts) for name in CAUSES if name not in listed}

    def _moments(self, own: Integers) -> Intervals:
        at = np.flatnonzero(own)
        return merged(self._start.take(at), self._end.take(at))[0] if len(at) else NOTHING


def _idle_causes(busy: Intervals, call: Integers, communicates: Integers) -> tuple[Intervals, Intervals]:
    """Gaps that are bound by the host and gaps that wait for a collective, from what opens each busy interval."""
    begins = np.concatenate(([FIRST], busy[:-1, 1]))[: len(busy)]
    gaps = np.stack((begins, busy[:, 0])).T
    known = call != UNKNOWN
    host = known & (call >= begins)
    return gaps[host], gaps[known & ~host & communicates]


def timeline(capture: CapturedEvents) -> list[dict[str, Any]]:
    """One row per process, device and scope: the capture, or all steps from first to last; then every single step.

    A device's activity counts to the step during which it happens, whichever step launched it. The capture spans from
    the first to the last device event or step of a process. Starts count from the first step of the trace on a device,
    and are None without one; so is what a trace did not record.
    """
    traces, marks, steps = capture.traces, capture.marks, capture.steps
    sets = []
    for own in (capture.kernels, capture.memory):
        if own is not None:
            kinds = [MEMORY if own is capture.memory else _OF_CLASS.get(of["class"], COMPUTE) for of in own.described()]
            sets.append((own, np.array(kinds, np.int8)))
    origins: dict[int, int] = {}
    for (trace, _, _), own in steps.items():
        origins[trace] = min(origins.get(trace, own.window[0]), own.window[0])
    places = sorted({place for own, _ in sets for place in own.places}, key=str)

    @cache
    def away(*owner: Any) -> Intervals:
        return NOTHING if capture.api is None else elsewhere(capture.api, capture.ranges, marks, owner)

    def rows(place: Place) -> list[dict[str, Any]]:
        start, duration = (capture.of_device(place, name) for name in ("start", "duration"))
        kind = np.concatenate([kinds.take(own.code[own.at(place)]) for own, kinds in sets])
        device = Device(start, start + duration, kind, capture.of_device(place, "call") if capture.linked else None)
        own = steps.get(place, _NO_STEPS)
        around = marks.window(*place[:2]) if capture.scope == STEPS else ALWAYS
        if around == ALWAYS:
            first, last = device.first, device.last
            if len(own.starts):
                first, last = min(first, own.window[0]), max(last, own.window[1])
        else:
            first, last = own.window if len(own.starts) else around
        found = device.between(np.append(first, own.starts), np.append(last, own.ends), away(*place[:2]))
        where = dict(zip(("trace", "process", "device"), place, strict=True))
        origin = origins.get(place[0])
        starts = [None if origin is None else (start - origin) / 1e9 for start in (first, *own.starts.tolist())]
        for kind, shares in _NEED.items():
            if not traces[place[0]].has(kind):
                found |= {share: [None] * len(found["span"]) for share in shares}
        overall = {"scope": CAPTURE, "extent": None} if around == ALWAYS else {"scope": STEPS, "extent": own.extent}
        return [
            {**where, **({"scope": STEP, "extent": own.extent} if i else overall), "step": i or None}
            | {"start_s": starts[i]}
            | {f"{name}_s": None if values[i] is None else values[i] / 1e9 for name, values in found.items()}
            for i in range(1 + len(own.starts))
        ]

    return [row for table in in_parallel(rows, places) for row in table]


_NO_STEPS = Steps(np.empty(0, np.int64), np.empty(0, np.int64), HOST)

# Shares that cannot be told without a kind of events. Without kernels nobody knows when a device was idle; copies
# are recorded with kernels, so without any the rest still holds.
_NEED = {
    "kernels": (*(share for share in SHARES if share not in ("span", "memory")), *CAUSES),
    "memory": ("memory",),
    "api": CAUSES,
}
