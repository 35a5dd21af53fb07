"""All events of a capture that the wanted tables are made of, each table of the traces read once."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.trace.clocks import Difference, WaitingCalls, difference
from multicard.trace.collect import Events, Progress, Where, collect, in_parallel
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.launches import UNKNOWN, Launches
from multicard.trace.model import Batch, EventSource, Integers, Trace
from multicard.trace.statistics import Grouped, Statistics, statistics
from multicard.trace.steps import Marks, Owner, Steps, Window, on_device, streams_of_steps

CAPTURE, STEPS = "capture", "steps"
LACKING = 0.01  # part of the launches of a process or step that may lack their kernel
SCOPES = (CAPTURE, STEPS)
WORTH_THREADS = 10_000  # values; the statistics of fewer take less time than to start a thread

Key = tuple[Any, ...]
Place = tuple[int, int, int | None]  # trace, process, device


class CapturedEvents:
    """Events by kind; None for a kind that was not recorded, or is not wanted.

    In the scope `CAPTURE` these are all events. In the scope `STEPS` they are those that belong to the steps of their
    process, from the start of the first to the end of the last: what began then, and what runs on a device if it was
    launched then, whenever it ran. Where its launch was not recorded, it belongs to them if it began while the device
    ran them. A process without steps has those of its trace's other processes, and so have counters, which belong to
    no process; a trace without steps keeps all of its events. Memory in use is a state and is kept whole.
    """

    def __init__(
        self,
        traces: Sequence[Trace],
        wanted: set[str],
        progress: Progress | None,
        scope: str = CAPTURE,
        dropped: Mapping[Owner, tuple[int, int]] | None = None,
    ) -> None:
        """Read the kinds of events that are `wanted`.

        Beside kinds, "shapes" asks for launch shapes, "starts" for more than durations of what runs on devices,
        "launches" for the calls that launched it, and "calls" for the times of all calls. The scope `STEPS` needs
        "ranges", and for what runs on devices "api", "starts" and "launches". `dropped`: see `Marks`.
        """
        self.traces, self.scope = traces, scope

        def read(kind: str, *keep: str, **how: Any) -> Events | None:
            return collect(traces, kind, keep=keep, progress=progress, **how) if kind in wanted else None

        self.ranges = read("ranges", "start", "duration", groups=("process", "domain", "name", "thread"))
        self.marks = Marks(self.ranges, dropped)
        linked = ("correlation",) if "launches" in wanted else ()
        times = ("start", "duration") if "starts" in wanted else ()
        # When a device begins and ends steps depends on who launched what on which stream.
        threads = self.marks.threads if linked and times else set()
        stream, thread = (("stream",), ("thread",)) if threads else ((), ())
        shape = ("grid", "block") if "shapes" in wanted else ()
        self.kernels = read("kernels", *linked, *times, groups=("process", "device", "name", *shape, *stream))
        place = ("process", "device", "operation", "host_memory", *stream)
        self.memory = read("memory", *linked, *times, "bytes", groups=place)
        self.messages = read("messages", "start", "bytes", sort=None)
        self.memory_use = read("memory_use", "start", "bytes", sort=None)
        self.metrics = read("metrics", "start", "value", sort="value")
        sets = [own for _, own in self._on_device()]
        self.launches: Launches | None = None
        if "api" in wanted and linked and sets and any(trace.has("api") for trace in traces):
            self.launches = Launches(sets, threads)
        for own in sets:
            own.arrays.pop("correlation", None)
        self.api = read(
            "api",
            *(("start", "duration") if "calls" in wanted else ()),
            groups=("process", "api", "name", *(("thread",) if "calls" in wanted else thread)),
            see=self.launches.see if self.launches else None,
            where=self._begun_in_steps() if scope == STEPS else None,
        )
        self.clocks: dict[Place, Difference] = {}
        if self.launches:
            self.launches.done()
            if "calls" in wanted:
                self._compare_clocks(self.launches)
        if scope == STEPS:
            self._keep_steps()
        if self.kernels:  # two more fields, which the names tell
            names = [name for _, name in self.kernels.values("name")]
            self.kernels.groups = [
                (*group, kernel_class(name), collective(name))
                for group, name in zip(self.kernels.groups, names, strict=True)
            ]
            self.kernels.fields += ("class", "collective")

    def _compare_clocks(self, launches: Launches) -> None:
        """Find devices whose clock does not agree with the host's, and set their times right where that can be."""
        waiting = None if self.api is None else WaitingCalls(self.api)
        sets = [(own, own.values("process", "device")) for _, own in self._on_device()]
        for place in sorted({place for _, values in sets for place in values}, key=str):
            latency, late = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for which, (own, values) in enumerate(sets):
                mine = own.mask(value == place for value in values)
                start = own.arrays["start"][mine].astype(np.int64)
                call = launches.start_of(which, mine)
                known = call != UNKNOWN
                latency.append(start[known] - call[known])
                if own is self.memory:
                    end, called = start + own.arrays["duration"][mine], launches.end_of(which, mine)
                    copies = own.values("operation", "host_memory")
                    to_host = known & own.mask(copy == "device_to_host" for _, copy, _ in copies)[mine]
                    paged = to_host & own.mask(kind == "pageable" for _, _, kind in copies)[mine]
                    late.append(end[paged] - called[paged])
                    if waiting is not None:
                        others = to_host & ~paged
                        followed, until = waiting.ends(call[others])
                        late.append(end[others][followed] - until)
            found = difference(np.concatenate(latency), np.concatenate(late))
            if found is not None:
                self.clocks[place] = found
                for own, values in sets if found.can_be_corrected else ():
                    mine = own.mask(value == place for value in values)
                    own.arrays["start"] = own.arrays["start"].astype(np.int64) - np.where(mine, found.ns, 0)

    @cached_property
    def incomplete(self) -> dict[Owner, tuple[int, int, int, int]]:
        """Processes of which the capture lacks kernels that they launched.

        Of each the number of launches without a kernel, of all, and how many steps at the beginning and at the end of
        the capture are held in part.
        """
        found = {}
        for owner, (start, lacking) in (self.launches.without_kernel() if self.launches else {}).items():
            if not len(lacking) or lacking[-1] <= LACKING * len(lacking):
                continue
            first = last = 0
            if owner in self.marks.steps:
                steps = self.marks.steps[owner]
                at = np.searchsorted(start, np.stack((steps.starts, steps.ends)))
                counts, missing = np.diff(at, axis=0)[0], np.diff(np.append(0, lacking)[at], axis=0)[0]
                whole = np.flatnonzero((counts > 0) & (missing <= LACKING * counts))
                if len(whole):
                    first, last = int(whole[0]), len(counts) - 1 - int(whole[-1])
            found[owner] = (int(lacking[-1]), len(lacking), first, last)
        return found

    def _on_device(self) -> list[tuple[str, Events]]:
        """What ran on devices, by kind, in the order in which `launches` counts these sets."""
        found = [("kernels", self.kernels), ("memory", self.memory)]
        return [(kind, own) for kind, own in found if own is not None]

    @cached_property
    def steps(self) -> dict[Place, Steps]:
        """Steps of each device of a process that marked steps, by the device itself where launches tell."""
        sets = [(own, own.values("process", "device")) for _, own in self._on_device()]
        places = sorted({place for _, values in sets for place in values if place[:2] in self.marks.steps}, key=str)
        if self.launches is None:
            return {place: self.marks.steps[place[:2]] for place in places}
        launches = self.launches

        def one(place: Place) -> Steps:
            host = self.marks.steps[place[:2]]
            calls, ends = [], []
            masks = [own.mask(value == place for value in values) for own, values in sets]
            for which, ((own, _), mine) in enumerate(zip(sets, masks, strict=True)):
                calls.append(launches.start_of(which, mine))
                ends.append(own.arrays["start"][mine] + own.arrays["duration"][mine].astype(np.int64))
            chosen = self._on_streams_of_steps(launches, place, masks, calls)
            return host if chosen is None else on_device(host, np.concatenate(calls), np.concatenate(ends), chosen)

        return dict(zip(places, in_parallel(one, places), strict=True))

    def _on_streams_of_steps(
        self, launches: Launches, place: Place, masks: Sequence[npt.NDArray[np.bool_]], calls: Sequence[Integers]
    ) -> npt.NDArray[np.bool_] | None:
        """Which events of a device are on streams of its steps, all kinds one after another; None: nobody can tell."""
        streams: list[list[int | None]] = []  # by kind and group
        codes: list[Integers] = []
        launched: list[int | None] = []
        others = False
        for which, ((kind, own), mine) in enumerate(zip(self._on_device(), masks, strict=True)):
            streams.append([stream for _, stream in own.values("stream")])
            codes.append(own.code[mine])
            by_thread = launches.by_thread(which, mine)
            others = others or bool((~by_thread & (calls[which] != UNKNOWN)).any())
            if kind == "kernels":
                launched = [streams[-1][code] for code in _distinct(codes[-1][by_thread])]
        used = [of[code] for of, code_of_each in zip(streams, codes, strict=True) for code in _distinct(code_of_each)]
        threads = [thread for *owner, thread in self.marks.threads if tuple(owner) == place[:2]]
        chosen = streams_of_steps(used, launched, others, threads)
        if chosen is None:
            return None
        return np.concatenate(
            [np.array([stream in chosen for stream in of], bool)[code] for of, code in zip(streams, codes, strict=True)]
        )

    def _begun_in_steps(self) -> Where:
        """Tells which events of a batch began between the first and the last step of their process."""
        marks = self.marks
        _ = marks.steps  # before several threads ask for them

        def begun(trace: int, source: EventSource, batch: Batch) -> npt.NDArray[np.bool_]:
            windows = [marks.window(trace, process) for (process,) in source.described(("process",))]
            return _inside(batch.numbers["start"], windows, batch.group)

        return begun

    def _keep_steps(self) -> None:
        """Drop what belongs to no step."""
        by_device = {place: steps.window for place, steps in self.steps.items()}
        for which, (kind, own) in enumerate(self._on_device()):
            start, places = own.arrays["start"], own.values("process", "device")
            windows = [self.marks.window(*place[:2]) for place in places]
            if self.launches is None:
                inside = _inside(start, windows, own.code)
            else:
                call = self.launches.start_of(which, slice(None))
                ran = [by_device.get(place, window) for place, window in zip(places, windows, strict=True)]
                inside = np.where(call == UNKNOWN, _inside(start, ran, own.code), _inside(call, windows, own.code))
                self.launches.keep(which, inside)
            setattr(self, kind, own.where(inside))
        for kind, other in (("ranges", self.ranges), ("messages", self.messages), ("metrics", self.metrics)):
            if other is not None:
                owners = other.values("process") if "process" in other.fields else [(g[0], None) for g in other.groups]
                windows = [self.marks.window(*owner) for owner in owners]
                setattr(self, kind, other.where(_inside(other.arrays["start"], windows, other.code)))


def _distinct(codes: Integers) -> list[int]:
    """The codes that occur."""
    return [int(code) for code in np.flatnonzero(np.bincount(codes))]


def _inside(moments: Integers, windows: Sequence[Window], code: Integers) -> npt.NDArray[np.bool_]:
    """Whether each moment lies in the window [first, last) of its group."""
    if len(set(windows)) == 1:
        ((first, last),) = set(windows)
        return (first <= moments) & (moments < last)
    first_of, last_of = np.array(windows, np.int64).reshape(-1, 2).T
    return (first_of[code] <= moments) & (moments < last_of[code])


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
