"""All events of a capture that the wanted tables are made of, each table of the traces read once."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.core.units import SECONDS, with_unit
from multicard.trace.collect import Events, Place, collect, left_out_notices
from multicard.trace.host_collectives import host_collectives
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.launches import NO_THREAD, UNKNOWN, calling_threads, join_calls
from multicard.trace.messages import communication_kernels
from multicard.trace.model import DEVICE, KINDS, Integers, Trace
from multicard.trace.rank_matching import Matching, match_ranks
from multicard.trace.statistics import Grouped, Statistics, statistics
from multicard.trace.steps import LONG_AGO, Marks, Steps, Window, launched_before, on_device

CAPTURE, STEPS = "capture", "steps"
SCOPES = (CAPTURE, STEPS)
LACKING = 0.01  # part of the launches of a process that may lack their kernel
EARLY, TOLERANCE_NS = 0.01, 1_000_000  # part of a device's activity that may begin so long before its launching call
WORTH_THREADS = 10_000  # values; the statistics of fewer take less time than to start a thread

Key = tuple[Any, ...]


class CapturedEvents:
    """Events by kind; None for a kind that was not recorded, or is not wanted.

    In the scope `CAPTURE` these are all events. In the scope `STEPS` they are those that belong to the steps of their
    process, from the start of the first to the end of the last: what began then, and what runs on a device if it was
    launched then, whenever it ran. Where its launch was not recorded, it belongs to them if it began while the device
    ran them; not if `launched_before` says that it is older than they are. A process without steps has those of its
    trace's other processes; a trace without steps keeps all of its events.

    `linked`: whether what ran on devices has the arrays of `join_calls`. `warnings`: lines on what the capture lacks,
    so that an answer may be wrong. `notices`: lines on what was set right.
    """

    def __init__(self, traces: Sequence[Trace], wanted: set[str], scope: str = CAPTURE) -> None:
        """Read the kinds of events that are `wanted`.

        Beside kinds, "starts" asks for more than the durations of calls and of what runs on devices, "launches" for
        that and for the calls that launched it. The scope `STEPS` needs "ranges", and for what runs on devices "api"
        and "launches".
        """
        self.traces, self.scope = traces, scope

        def read(kind: str, *numbers: str, groups: tuple[str, ...] | None = None) -> Events | None:
            return collect(traces, kind, numbers, groups) if kind in wanted else None

        self.ranges = read("ranges", "start", "duration", groups=("process", "domain", "name", "thread"))
        self.marks = Marks(self.ranges, traces)
        linked = "launches" in wanted and any(trace.has("api") for trace in traces)
        times = ("start", "duration") if scope == STEPS or wanted & {"launches", "starts"} else ("duration",)
        messages = read("messages", *KINDS["messages"].numbers)
        times = ("correlation", *times) if linked or messages is not None else times
        stream = ("stream",) if linked or "starts" in wanted else ()
        self.kernels = read("kernels", *times, groups=("process", "device", "name", *stream))
        place = ("process", "device", "operation", "host_memory", *stream)
        self.memory = read("memory", *times, "bytes", groups=place)
        self.graphs = read("graphs", *times, groups=("process", "device", *stream))
        self.api = read("api", *times, groups=("process", "api", "name", *(("thread",) if linked else ())))
        self.host_calls = read("host_calls", "start", "duration", groups=("process", "name", "thread"))
        if self.kernels:  # two more fields, which the names tell
            names = [name for _, name in self.kernels.values("name")]
            self.kernels.groups = [
                (*group, kernel_class(name), collective(name))
                for group, name in zip(self.kernels.groups, names, strict=True)
            ]
            self.kernels.fields += ("class", "collective")
        # The kernels of collectives, with what their messages tell.
        self.communication: Events | None = None
        if self.kernels:
            calls = self.api if linked else None
            self.communication = communication_kernels(self.kernels, calls, messages)
        read_events = {
            "kernels": self.kernels, "memory": self.memory, "graphs": self.graphs, "api": self.api,
            "ranges": self.ranges, "host_calls": self.host_calls,
        }  # fmt: skip
        self.notices = [line for trace in traces for line in trace.notices] + left_out_notices(traces, read_events)
        self.warnings = [
            f"{trace.name}: {diagnostic.text}"
            for trace in traces
            for diagnostic in trace.diagnostics
            if diagnostic.means_loss
        ]
        self.warnings += self._repeated_ranks()
        self.linked = linked and self.api is not None and bool(self.on_device())
        if self.linked:
            self._join()
        if scope == STEPS:
            self._keep_steps()

    def _repeated_ranks(self) -> list[str]:
        """Return a line for each rank of which several traces hold what it ran on devices."""
        owners = {place[:2] for place in self.places() if len(place) > 1}
        ranks = Counter(self.traces[trace].ranks.get(process) for trace, process in owners)
        return [
            f"rank {rank} is in {count} traces: captures of one rank count as GPUs of their own"
            for rank, count in ranks.items()
            if rank is not None and count > 1
        ]

    def _join(self) -> None:
        """Find the calls that launched what ran on devices; where clocks do not agree, nobody can tell these."""
        sets = [own for _, own in self.on_device()]
        for (trace, process), (lacking, launches) in join_calls(self.api, sets).items():
            # A kernel that was left out was there.
            lacking -= self.kernels.left_out.get(trace, 0) if self.kernels else 0
            if lacking > LACKING * launches:
                where = f"{self.traces[trace].name}: process {process}"
                causes = self.traces[trace].failed_launches()
                why = f": {', '.join(causes)}" if causes else ""
                self.warnings.append(f"{where}: {lacking} of {launches} kernel launches have no kernel{why}")
        for own in (self.api, *sets):
            own.arrays.pop("correlation")
        for place in self.places():
            start, call = (self.of_device(place, name) for name in ("start", "call"))
            known = np.flatnonzero(call != UNKNOWN)
            latency = start.take(known) - call.take(known)
            if len(latency) and np.quantile(latency, EARLY) < -TOLERANCE_NS:
                trace, process, device = place
                self.warnings.append(
                    f"{self.traces[trace].name}: process {process}, device {device}: begins work up to "
                    f"{with_unit(-float(latency.min()) / 1e9, SECONDS)} before it is launched, so the clocks of GPU "
                    "and host differ: launches are not told, and times of steps are wrong by as much"
                )
                for own in sets:
                    own.arrays["call"][own.at(place)] = own.arrays["returned"][own.at(place)] = UNKNOWN

    def on_device(self) -> list[tuple[str, Events]]:
        """Return what ran on devices, with its kind."""
        found = [("kernels", self.kernels), ("memory", self.memory), ("graphs", self.graphs)]
        return [(kind, own) for kind, own in found if own is not None]

    def places(self) -> list[Place]:
        """Devices of processes on which anything ran."""
        return sorted({place for _, own in self.on_device() for place in own.places}, key=str)

    @property
    def has_graph_launches(self) -> bool:
        """True if calls that replay CUDA graphs were recorded, so that events have the array `by_graph`."""
        return any("by_graph" in own.arrays for _, own in self.on_device())

    def of_device(self, place: Place, name: str) -> Integers:
        """A number of what ran on a device, one kind after another; of starts, narrow ones would wrap in a sum."""
        found = np.concatenate([own.arrays[name][own.at(place)] for _, own in self.on_device()])
        return found.astype(np.int64) if name == "start" else found

    @cached_property
    def steps(self) -> dict[Place, Steps]:
        """Steps of each device of a process that marked steps, by the device itself where launches tell."""
        places = [place for place in self.places() if place[:2] in self.marks.steps]
        if not self.linked:
            return {place: self.marks.steps[place[:2]] for place in places}

        def one(place: Place) -> Steps:
            own = np.flatnonzero(self._on_streams_of_steps(place))
            call, start, duration = (self.of_device(place, name).take(own) for name in ("call", "start", "duration"))
            if early := self._launched_before(place):
                call = np.where(np.concatenate(early).take(own), LONG_AGO, call)
            return on_device(self.marks.steps[place[:2]], call, start + duration)

        return dict(zip(places, in_parallel(one, places), strict=True))

    @cached_property
    def matching(self) -> Matching:
        """Calls of collectives, matched between ranks: on devices, or on the host where devices ran none."""
        if self.communication is not None and len(self.communication.code):
            return match_ranks(self.communication, self.traces)
        on_host = None if self.ranges is None else host_collectives(self.ranges)
        return Matching([], []) if on_host is None else match_ranks(on_host, self.traces, on_host=True)

    def _on_streams_of_steps(self, place: Place) -> npt.NDArray[np.bool_]:
        """Which events of a device steps wait for, all kinds one after another.

        They are on streams with kernels that the thread launched that marks the steps, such as those of the forward
        pass and of the optimizer; the backward pass uses the same ones. Loaders that work in threads of their own, such
        as DALI, use others. On a device without such kernels all streams are: with `DataParallel` replicas run in a
        thread per device.
        """
        sets = [own for _, own in self.on_device()]
        streams = [[stream for _, stream in own.values("stream")] for own in sets]
        chosen = set()
        if self.kernels is not None and self.api is not None:
            mine = self.kernels.at(place)
            marks_steps = np.zeros(NO_THREAD + 1, bool)
            callers = calling_threads(self.api)
            marks_steps[: len(callers)] = [caller in self.marks.threads for caller in callers]
            by_marking_thread = np.flatnonzero(marks_steps.take(self.kernels.arrays["thread"][mine]))
            counts = np.bincount(self.kernels.code[mine].take(by_marking_thread))
            chosen = {streams[0][code] for code in np.flatnonzero(counts).tolist()}
        return np.concatenate(
            [
                own.mask([not chosen or stream in chosen for stream in of], own.at(place))
                for own, of in zip(sets, streams, strict=True)
            ]
        )

    def _launched_before(self, place: Place) -> list[npt.NDArray[np.bool_]]:
        """Which events of a device were `launched_before` the steps, for each kind; [] if all calls were recorded."""
        sets = [own for _, own in self.on_device()]
        calls = [own.arrays["call"][own.at(place)] for own in sets]
        if all(call.max(initial=0) != UNKNOWN for call in calls):
            return []
        names = [own.values("stream") for own in sets]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(name for of in names for name in of))}
        streams = [
            np.array([numbers[name] for name in of], np.int32).take(own.code[own.at(place)])
            for own, of in zip(sets, names, strict=True)
        ]
        steps = self.marks.steps[place[:2]]
        first_step = int(steps.starts[0]), int(steps.ends[0])
        early = launched_before(
            first_step, np.concatenate(calls), self.of_device(place, "start"), np.concatenate(streams)
        )
        return np.split(early, np.cumsum([len(call) for call in calls])[:-1])

    def _keep_steps(self) -> None:
        """Drop what belongs to no step."""
        by_device = {place: steps.window for place, steps in self.steps.items()}
        # Where the host tells the steps, launches are not known well enough.
        told = [place for place, steps in self.steps.items() if steps.extent == DEVICE]
        early = {place: self._launched_before(place) for place in told}
        for number, (kind, own) in enumerate(self.on_device()):
            windows = {place: self.marks.window(*place[:2]) for place in own.places}
            inside = _inside(own, "start", windows)
            if self.linked:
                ran = _inside(own, "start", windows | by_device)
                inside = np.where(own.arrays["call"] == UNKNOWN, ran, _inside(own, "call", windows))
                for place, masks in early.items():
                    if masks:
                        inside[own.at(place)] &= ~masks[number]
            setattr(self, kind, own.where(inside))
            if kind == "kernels" and self.communication is not None:
                positions = self.communication.arrays["kernel"]
                self.communication = self.communication.where(inside.take(positions))
        for kind in ("ranges", "api"):
            other: Events | None = getattr(self, kind)
            if other is not None:
                windows = {place: self.marks.window(*place) for place in other.places}
                setattr(self, kind, other.where(_inside(other, "start", windows)))


def _inside(events: Events, name: str, windows: Mapping[Place, Window]) -> npt.NDArray[np.bool_]:
    """Whether a time of each event lies in the window [first, last) of its place."""
    moments = events.arrays[name]
    inside = np.zeros(len(moments), bool)
    for place, own in events.places.items():
        first, last = windows[place]
        inside[own] = (first <= moments[own]) & (moments[own] < last)
    return inside


def summed(values: Grouped, events: Events, key: Callable[[int], Key | None]) -> list[tuple[Key, Statistics]]:
    """Statistics of the values of all groups that share a key, in the order of the keys' texts."""
    members: dict[Key, list[int]] = {}
    for code in sorted(range(len(events.groups)), key=lambda code: str(events.groups[code])):
        found = key(code)
        if found is not None and code in values:
            members.setdefault(found, []).append(code)

    def one(codes: list[int]) -> Statistics:
        return statistics(values.of(codes))

    few = len(values) < WORTH_THREADS
    results = map(one, members.values()) if few else in_parallel(one, members.values())
    return list(zip(members, results, strict=True))
