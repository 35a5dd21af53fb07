"""All events of a capture that the wanted tables are made of, each table of the traces read once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from multicard.core.system import in_parallel
from multicard.core.units import SECONDS, with_unit
from multicard.trace.collect import collect, left_out_notices
from multicard.trace.events import Events, Location, Owner
from multicard.trace.host_collectives import host_collectives
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.launches import NO_THREAD, UNKNOWN, LaunchCounts, calling_threads, join_calls
from multicard.trace.messages import communication_kernels
from multicard.trace.model import DEVICE, KINDS, Integers, Trace
from multicard.trace.rank_matching import Matching, match_ranks
from multicard.trace.steps import LONG_AGO, Marks, Steps, Window, launched_before, steps_on_device

CAPTURE, STEPS = "capture", "steps"
SCOPES = (CAPTURE, STEPS)

# The kinds of events that run on devices, in the order in which their arrays are concatenated.
ON_DEVICE = ("kernels", "memory", "graphs")

# A process may lack the kernels of this share of its launches before that is reported.
MISSING_KERNELS_SHARE = 0.01
# The clocks of device and host disagree if more than this share of a device's work begins longer before its launching
# call than the tolerance.
EARLY_SHARE = 0.01
EARLY_TOLERANCE_NS = 1_000_000

Mask = npt.NDArray[np.bool_]


class CapturedEvents:
    """Events by kind; None for a kind that was not recorded, or is not wanted.

    In the scope `CAPTURE` these are all events. In the scope `STEPS` they are those that belong to the steps of their
    process, from the start of the first to the end of the last: what began then, and what runs on a device if it was
    launched then, whenever it ran. Where its launch was not recorded, it belongs to them if it began while the device
    ran them; not if `launched_before` finds that it is older than they are. A process without steps has those of its
    trace's other processes; a trace without steps keeps all of its events.

    `linked`: True if what ran on devices has the arrays `call`, `returned` and `thread` of its launching calls, as
    `join_calls` adds them; a call that was not recorded is `UNKNOWN`. `warnings`: lines on what the capture lacks,
    so that an answer may be wrong. `notices`: lines on what was set right.
    """

    def __init__(self, traces: Sequence[Trace], wanted: set[str], scope: str = CAPTURE) -> None:
        """Read the kinds of events that are `wanted`.

        Beside kinds, "starts" requests more than the durations of calls and of what runs on devices, "launches" that
        and the calls that launched it. The scope `STEPS` needs "ranges", and for what runs on devices "api" and
        "launches".
        """
        self.traces = traces
        self.scope = scope
        can_link = "launches" in wanted and any(trace.has("api") for trace in traces)
        needs_starts = scope == STEPS or bool(wanted & {"launches", "starts"})
        self._events: dict[str, Events] = {}
        messages = self._read(wanted, can_link, needs_starts)
        self.marks = Marks(self.ranges, traces)
        # The kernels of collectives, with the sizes of their messages.
        self.communication: Events | None = None
        if self.kernels is not None:
            _add_classes(self.kernels)
            calls = self.api if can_link else None
            self.communication = communication_kernels(self.kernels, calls, messages)

        self.notices: list[str] = []
        for trace in traces:
            self.notices += trace.notices
        kinds_with_durations = (*ON_DEVICE, "api", "ranges", "host_calls")
        self.notices += left_out_notices(traces, {name: self.events(name) for name in kinds_with_durations})
        self.warnings = _losses(traces) + self._repeated_ranks()
        self.linked = False
        if can_link and self.api is not None and self.on_device():
            self.linked = True
            self._join(self.api)
        if scope == STEPS:
            self._keep_steps()

    def _read(self, wanted: set[str], can_link: bool, needs_starts: bool) -> Events | None:
        """Read the wanted kinds of events into `_events`, and return the messages.

        Each number and each column of groups that is not needed saves time and memory.
        """

        def read(event_kind: str, numbers: Sequence[str], groups: Sequence[str]) -> Events | None:
            if event_kind not in wanted:
                return None
            return collect(self.traces, event_kind, numbers, groups)

        ranges = read("ranges", ["start", "duration"], ["process", "domain", "name", "thread"])
        messages = read("messages", KINDS["messages"].numbers, KINDS["messages"].groups)
        times = ["start", "duration"] if needs_starts else ["duration"]
        if can_link or messages is not None:
            times = ["correlation", *times]
        stream = ["stream"] if can_link or "starts" in wanted else []
        thread = ["thread"] if can_link else []
        events_of_kind = {
            "ranges": ranges,
            "kernels": read("kernels", times, ["process", "device", "name", *stream]),
            "memory": read("memory", [*times, "bytes"], ["process", "device", "operation", "host_memory", *stream]),
            "graphs": read("graphs", times, ["process", "device", *stream]),
            "api": read("api", times, ["process", "api", "name", *thread]),
            "host_calls": read("host_calls", ["start", "duration"], ["process", "name", "thread"]),
        }
        for event_kind, events in events_of_kind.items():
            if events is not None:
                self._events[event_kind] = events
        return messages

    @property
    def kernels(self) -> Events | None:
        """Kernels, with the fields `class` and `collective` beside those that were recorded."""
        return self._events.get("kernels")

    @property
    def memory(self) -> Events | None:
        """Copies and fills on devices."""
        return self._events.get("memory")

    @property
    def graphs(self) -> Events | None:
        """Replays of CUDA graphs that were recorded as a whole."""
        return self._events.get("graphs")

    @property
    def api(self) -> Events | None:
        """Calls of CUDA, HIP or SYCL on the host."""
        return self._events.get("api")

    @property
    def ranges(self) -> Events | None:
        """Ranges that the program marked."""
        return self._events.get("ranges")

    @property
    def host_calls(self) -> Events | None:
        """Calls of the operating system and of MPI."""
        return self._events.get("host_calls")

    def events(self, kind: str) -> Events | None:
        """Return the events of a kind, None if it was not recorded or is not wanted."""
        return self._events.get(kind)

    def required(self, kind: str) -> Events:
        """Return the events of a kind that is known to have been recorded.

        Raises `KeyError` if it was not, or is not wanted.
        """
        return self._events[kind]

    def on_device(self) -> list[tuple[str, Events]]:
        """Return what ran on devices, with its kind, in the order of `ON_DEVICE`."""
        return [(name, self._events[name]) for name in ON_DEVICE if name in self._events]

    def locations(self) -> list[Location]:
        """Return the devices of processes on which anything ran, in the order of their texts."""
        locations: set[Location] = set()
        for _, events in self.on_device():
            locations |= events.locations.keys()
        return sorted(locations, key=str)

    @property
    def has_graph_launches(self) -> bool:
        """True if calls that replay CUDA graphs were recorded, so that events have the array `by_graph`."""
        return any("by_graph" in events.arrays for _, events in self.on_device())

    def of_device(self, location: Location, name: str) -> Integers:
        """Return an array of what ran on a device, one kind after another, as it is stored: times are nanoseconds.

        Only starts become 64-bit integers, since narrower ones would overflow when a duration is added.
        """
        parts = [events.array_at(name, location) for _, events in self.on_device()]
        values = np.concatenate(parts)
        return values.astype(np.int64) if name == "start" else values

    @cached_property
    def steps(self) -> dict[Location, Steps]:
        """Steps of each device of a process that marked steps: the device's own where launches are known."""
        locations = [location for location in self.locations() if location[:2] in self.marks.steps]
        if not self.linked:
            return {location: self.marks.steps[location[:2]] for location in locations}
        return dict(zip(locations, in_parallel(self._steps_of_device, locations), strict=True))

    def _steps_of_device(self, location: Location) -> Steps:
        """Return the steps as a device of a process ran them, from the work that its steps wait for."""
        awaited = np.flatnonzero(self._on_streams_of_steps(location))
        call = self.of_device(location, "call").take(awaited)
        start = self.of_device(location, "start").take(awaited)
        duration = self.of_device(location, "duration").take(awaited)
        is_before_steps = self._launched_before(location)
        if is_before_steps is not None:
            # Steps wait for such work, but it does not count among what must be recorded.
            call = np.where(is_before_steps.take(awaited), LONG_AGO, call)
        return steps_on_device(self.marks.steps[location[:2]], call, start + duration)

    @cached_property
    def matching(self) -> Matching:
        """Calls of collectives, matched between ranks: on devices, or on the host where devices ran none."""
        if self.communication is not None and len(self.communication.code):
            return match_ranks(self.communication, self.traces)
        on_host = None if self.ranges is None else host_collectives(self.ranges)
        return Matching([], []) if on_host is None else match_ranks(on_host, self.traces, on_host=True)

    def _repeated_ranks(self) -> list[str]:
        """Return a line for each rank whose work on devices is in several traces."""
        owners = {location[:2] for location in self.locations() if len(location) > 1}
        ranks = Counter(self.traces[trace].ranks.get(process) for trace, process in owners)
        return [
            f"rank {rank} is in {count} traces: captures of one rank count as GPUs of their own"
            for rank, count in ranks.items()
            if rank is not None and count > 1
        ]

    def _join(self, api: Events) -> None:
        """Find the calls that launched what ran on devices, and warn where that cannot be right."""
        device_events = [events for _, events in self.on_device()]
        for owner, counts in join_calls(api, device_events).items():
            self._warn_of_missing_kernels(owner, counts)
        # Once the calls are joined, correlations only take memory.
        for events in (api, *device_events):
            events.arrays.pop("correlation")
        for location in self.locations():
            self._check_clocks(location)

    def _warn_of_missing_kernels(self, owner: Owner, counts: LaunchCounts) -> None:
        """Add a warning if a process has more launches without a kernel than may be missing."""
        trace, process = owner
        missing = counts.without_kernel
        # Kernels that were recorded but left out, as they end before they begin, are not missing.
        if self.kernels is not None:
            missing -= self.kernels.left_out.get(trace, 0)
        if missing <= MISSING_KERNELS_SHARE * counts.launches:
            return
        name = self.traces[trace].name
        causes = self.traces[trace].failed_launches()
        why = f": {', '.join(causes)}" if causes else ""
        self.warnings.append(
            f"{name}: process {process}: {missing} of {counts.launches} kernel launches have no kernel{why}"
        )

    def _check_clocks(self, location: Location) -> None:
        """Drop the launching calls of a device whose work begins before them: its clock is not that of the host."""
        start = self.of_device(location, "start")
        call = self.of_device(location, "call")
        launched = np.flatnonzero(call != UNKNOWN)
        latency = start.take(launched) - call.take(launched)
        if not len(latency):
            return
        early_latency = np.quantile(latency, EARLY_SHARE)
        if early_latency >= -EARLY_TOLERANCE_NS:
            return
        trace, process, device = location
        earliest = with_unit(-float(latency.min()) / 1e9, SECONDS)
        self.warnings.append(
            f"{self.traces[trace].name}: process {process}, device {device}: begins work up to {earliest} before it is "
            "launched, so the clocks of GPU and host differ: launches are not told, and times of steps are wrong by as "
            "much"
        )
        for _, events in self.on_device():
            events.array_at("call", location)[:] = UNKNOWN
            events.array_at("returned", location)[:] = UNKNOWN

    def _on_streams_of_steps(self, location: Location) -> Mask:
        """Return which events of a device its steps wait for, all kinds one after another.

        They are on streams with kernels that the thread launched that marks the steps, such as those of the forward
        pass and of the optimizer; the backward pass uses the same ones. Loaders that work in threads of their own, such
        as DALI, use others. On a device without such kernels all streams are: with `DataParallel` replicas run in a
        thread per device.
        """
        streams_of_steps = self._streams_of_marking_threads(location)
        masks = []
        for _, events in self.on_device():
            streams = events.group_field("stream")
            is_awaited = [not streams_of_steps or stream in streams_of_steps for stream in streams]
            masks.append(events.mask(is_awaited, events.slice_of(location)))
        return np.concatenate(masks)

    def _streams_of_marking_threads(self, location: Location) -> set[int | None]:
        """Return the streams of a device on which threads that mark steps launched kernels."""
        if self.kernels is None or self.api is None:
            return set()
        callers = calling_threads(self.api)
        # The index is the number of a thread. `NO_THREAD` is the last one, for kernels whose thread is unknown.
        marks_steps = np.zeros(NO_THREAD + 1, bool)
        marks_steps[: len(callers)] = [caller in self.marks.threads for caller in callers]

        thread_of_kernel = self.kernels.array_at("thread", location)
        is_by_marking_thread = marks_steps.take(thread_of_kernel)
        codes = self.kernels.codes_at(location)[is_by_marking_thread]
        kernels_of_code = np.bincount(codes)
        streams = self.kernels.group_field("stream")
        return {streams[code] for code in np.flatnonzero(kernels_of_code).tolist()}

    def _launched_before(self, location: Location) -> Mask | None:
        """Return which events of a device were `launched_before` the steps, all kinds one after another.

        None if all calls were recorded, so that their times are the answer.
        """
        call = self.of_device(location, "call")
        if call.max(initial=0) != UNKNOWN:
            return None
        steps = self.marks.steps[location[:2]]
        first_step = int(steps.starts[0]), int(steps.ends[0])
        start = self.of_device(location, "start")
        return launched_before(first_step, call, start, self._stream_numbers(location))

    def _stream_numbers(self, location: Location) -> Integers:
        """Return the stream of each event of a device as a number from 0, equal for one stream in all kinds."""
        number_of_stream: dict[int | None, int] = {}
        numbers: list[Integers] = []
        for _, events in self.on_device():
            number_of_code: list[int] = []
            for stream in events.group_field("stream"):
                number = number_of_stream.setdefault(stream, len(number_of_stream))
                number_of_code.append(number)
            code_of_event = events.codes_at(location)
            numbers.append(np.array(number_of_code, np.int32).take(code_of_event))
        return np.concatenate(numbers)

    def _by_kind(self, location: Location, values: Mask) -> dict[str, Mask]:
        """Divide values of what ran on a device, all kinds one after another, by kind."""
        kinds: list[str] = []
        counts: list[int] = []
        for event_kind, events in self.on_device():
            kinds.append(event_kind)
            counts.append(len(events.codes_at(location)))
        begins_of_others = np.cumsum(counts)[:-1]
        return dict(zip(kinds, np.split(values, begins_of_others), strict=True))

    def _keep_steps(self) -> None:
        """Drop what belongs to no step."""
        steps = self.steps
        device_windows = {location: steps_of_device.window for location, steps_of_device in steps.items()}
        before_steps: dict[Location, dict[str, Mask]] = {}
        for location in steps:
            # If the extent of the steps is that of the host, too few launches are known.
            is_before = self._launched_before(location) if steps[location].extent == DEVICE else None
            if is_before is not None:
                before_steps[location] = self._by_kind(location, is_before)

        for event_kind, events in self.on_device():
            is_kept = self._in_steps(events, device_windows)
            if self.linked:
                for location, is_before_of_kind in before_steps.items():
                    is_kept[events.slice_of(location)] &= ~is_before_of_kind[event_kind]
            self._events[event_kind] = events.where(is_kept)
            if event_kind == "kernels" and self.communication is not None:
                # The array has the positions among all kernels, before any is dropped.
                positions = self.communication.arrays["kernel"]
                self.communication = self.communication.where(is_kept.take(positions))
        for event_kind in ("ranges", "api"):
            if event_kind in self._events:
                host_events = self._events[event_kind]
                windows = {owner: self.marks.window(*owner) for owner in host_events.locations}
                self._events[event_kind] = host_events.where(_inside(host_events, "start", windows))

    def _in_steps(self, events: Events, device_windows: dict[Location, Window]) -> Mask:
        """Return which events of devices belong to steps: by their launching call, else by the device's own steps."""
        host_windows = {location: self.marks.window(*location[:2]) for location in events.locations}
        if not self.linked:
            return _inside(events, "start", host_windows)
        ran_in_steps = _inside(events, "start", host_windows | device_windows)
        launched_in_steps = _inside(events, "call", host_windows)
        is_unknown = events.arrays["call"] == UNKNOWN
        return np.where(is_unknown, ran_in_steps, launched_in_steps)


def _add_classes(kernels: Events) -> None:
    """Add the fields `class` and `collective` to the groups of kernels, by the names of these."""
    kernels.groups = [
        (*group, kernel_class(name), collective(name))
        for group, name in zip(kernels.groups, kernels.group_field("name"), strict=True)
    ]
    kernels.fields += ("class", "collective")


def _losses(traces: Sequence[Trace]) -> list[str]:
    """Return a line for each diagnostic of a profiler about events that it lost."""
    lines: list[str] = []
    for trace in traces:
        lines += [f"{trace.name}: {diagnostic.text}" for diagnostic in trace.diagnostics if diagnostic.means_loss]
    return lines


def _inside(events: Events, name: str, windows: Mapping[Location, Window]) -> Mask:
    """Return which events have a time in the window [first, last) of their location."""
    times = events.arrays[name]
    is_inside = np.zeros(len(times), bool)
    for location, part in events.locations.items():
        first, last = windows[location]
        times_of_part = times[part]
        is_inside[part] = (first <= times_of_part) & (times_of_part < last)
    return is_inside
