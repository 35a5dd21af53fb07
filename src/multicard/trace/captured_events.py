"""Read the events of a capture that the wanted activity tables need, each kind once, and drop those outside of steps.

Events on devices are also joined with the calls that launched them, and collectives are matched between ranks.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

import numpy as np

from multicard.core.system import in_parallel
from multicard.core.units import SECONDS, with_unit
from multicard.trace.collect import collect, left_out_notices
from multicard.trace.device_events import ON_DEVICE, DeviceEvents, Mask
from multicard.trace.device_steps import launched_before_steps, steps_of_device
from multicard.trace.events import Events, Location, Owner
from multicard.trace.host_collectives import host_collectives
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.launches import UNKNOWN, LaunchCounts, join_calls
from multicard.trace.matched_calls import Matching
from multicard.trace.messages import communication_kernels
from multicard.trace.model import DEVICE, KINDS, Trace
from multicard.trace.rank_matching import match_ranks
from multicard.trace.steps import Marks, Steps, Window

# Which events count: all of the capture, or those that belong to the steps (see `CapturedEvents`).
CAPTURE, STEPS = "capture", "steps"
SCOPES = (CAPTURE, STEPS)

# If more than this share of a process's kernel launches have no recorded kernel, a warning says so.
MISSING_KERNELS_SHARE = 0.01
# No activity can begin before the call that launched it. If more than `EARLY_SHARE` of a device's activities begin more
# than `EARLY_TOLERANCE_NS` nanoseconds before their launching calls, the clocks of the device and the host differ.
EARLY_SHARE = 0.01
EARLY_TOLERANCE_NS = 1_000_000


class CapturedEvents:
    """Events by kind; None for a kind that was not recorded, or is not wanted.

    In the scope `CAPTURE` these are all recorded events. In the scope `STEPS` they are the events that belong to the
    steps of their process. The window of the steps lasts from the start of the first step to the end of the last one:

    - A range or a call of CUDA, HIP or SYCL belongs to the steps if it began in their window on the host.
    - What ran on a device belongs to the steps if its launching call began in that window, no matter when it ran.
    - If its launching call was not recorded, it belongs to the steps if it began in the window in which the device
      itself ran the steps. If the device's own steps are known, this excludes what `launched_before_steps`
      finds to have been launched before the first step.
    - Calls of the operating system and of MPI are kept in either scope.

    For a process without steps, the window is that of all steps of the other processes of its trace. A trace without
    steps keeps all of its events.

    `on_device`: the kinds of events that ran on devices. `linked`: True if these have the arrays `call`, `returned` and
    `thread` of their launching calls, as `join_calls` adds them; a call that was not recorded is `UNKNOWN`.
    `warnings`: lines on what the capture lacks, each of which may make an answer wrong. `notices`: lines on damage that
    was repaired, or left out.
    """

    def __init__(self, traces: Sequence[Trace], wanted: set[str], scope: str = CAPTURE) -> None:
        """Read the kinds of events that are `wanted`.

        `wanted`: names of kinds (see `KINDS`), and requests for more about calls and about what ran on devices, of
        which only the durations are read by default. "starts" requests the starts of both, and the streams of what ran
        on devices. "launches" requests the same, and joins what ran on devices with the calls that launched it; the
        kind "api" must be wanted for that.

        The scope `STEPS` needs "ranges", which mark the steps. To find out what the steps launched on devices, it also
        needs "api" and "launches".
        """
        self.traces = traces
        self.scope = scope
        can_link = "launches" in wanted and any(trace.has("api") for trace in traces)
        needs_starts = scope == STEPS or bool(wanted & {"launches", "starts"})
        self._events: dict[str, Events] = {}
        messages = self._read(wanted, can_link, needs_starts)
        self.on_device = DeviceEvents(self._events)
        self.marks = Marks(self.ranges, traces)
        # All communication kernels, with the sizes of their messages; None if kernels were not recorded or not wanted.
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
        if can_link and self.api is not None and self.on_device.of_kind:
            self.linked = True
            self._join(self.api)
        if scope == STEPS:
            self._keep_steps()

    def _read(self, wanted: set[str], can_link: bool, needs_starts: bool) -> Events | None:
        """Read the wanted kinds of events into `_events`, and return the messages; None if these were not recorded.

        Numbers and group columns that are not needed are not read, which saves time and memory.
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
        """Kernels, with the fields `class` and `collective` in addition to those that were recorded."""
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
        """Return the events of a kind; None if the kind was not recorded or is not wanted."""
        return self._events.get(kind)

    def required(self, kind: str) -> Events:
        """Return the events of a kind that is known to have been recorded.

        Raises `KeyError` if the kind was not recorded or is not wanted.
        """
        return self._events[kind]

    @cached_property
    def steps(self) -> dict[Location, Steps]:
        """The steps of each device whose process has steps.

        They are the steps as the device ran them, as `steps_of_device` computes them from the launching calls. If no
        launching calls were joined, or too few were recorded, they are the steps of the host.
        """
        locations = [location for location in self.on_device.locations() if location[:2] in self.marks.steps]
        if not self.linked:
            return {location: self.marks.steps[location[:2]] for location in locations}
        steps = in_parallel(partial(steps_of_device, self.on_device, self.api, self.marks), locations)
        return dict(zip(locations, steps, strict=True))

    @cached_property
    def matching(self) -> Matching:
        """Calls of collectives, matched between ranks.

        These are the communication kernels on devices or, if the capture has none of these, the collectives that the
        host carried out.
        """
        if self.communication is not None and len(self.communication.code):
            return match_ranks(self.communication, self.traces)
        on_host = None if self.ranges is None else host_collectives(self.ranges)
        return Matching([], []) if on_host is None else match_ranks(on_host, self.traces, on_host=True)

    def _repeated_ranks(self) -> list[str]:
        """Return a line for each rank that belongs to more than one process with work on devices.

        Such processes are usually in several traces. If they are all in one, the line counts processes instead.
        """
        owners = {location[:2]: None for location in self.on_device.locations() if len(location) > 1}
        traces_of_rank: dict[int, list[int]] = {}
        for trace, process in owners:
            rank = self.traces[trace].ranks.get(process)
            if rank is not None:
                traces_of_rank.setdefault(rank, []).append(trace)
        lines: list[str] = []
        for rank, traces in traces_of_rank.items():
            trace_count = len(set(traces))
            if trace_count > 1:
                lines.append(f"rank {rank} is in {trace_count} traces: captures of one rank count as GPUs of their own")
            elif len(traces) > 1:
                lines.append(f"rank {rank} is in {len(traces)} processes, each of which counts as a rank of its own")
        return lines

    def _join(self, api: Events) -> None:
        """Join what ran on devices with the calls that launched it, and add warnings where these do not fit together.

        They do not fit where kernels are missing, or where a device works before its launching calls.
        """
        device_events = list(self.on_device.of_kind.values())
        for owner, counts in sorted(join_calls(api, device_events).items()):
            self._warn_of_missing_kernels(owner, counts)
        # Once the calls are joined, correlations only take memory.
        for events in (api, *device_events):
            events.arrays.pop("correlation")
        for location in self.on_device.locations():
            self._check_clocks(location)

    def _warn_of_missing_kernels(self, owner: Owner, counts: LaunchCounts) -> None:
        """Add a warning if the share of a process's launches without a kernel is above `MISSING_KERNELS_SHARE`."""
        trace, process = owner
        missing = counts.without_kernel
        # Kernels that end before they begin were left out, but they were recorded, so they are not missing.
        if self.kernels is not None:
            missing -= self.kernels.left_out.get(owner, 0)
        if missing <= MISSING_KERNELS_SHARE * counts.launches:
            return
        name = self.traces[trace].name
        causes = self.traces[trace].failed_launches()
        why = f": {', '.join(causes)}" if causes else ""
        self.warnings.append(
            f"{name}: process {process}: {missing} of {counts.launches} kernel launches have no kernel{why}"
        )

    def _check_clocks(self, location: Location) -> None:
        """Add a warning if the clock of a device differs from that of the host, and set its launching calls to unknown.

        The clocks differ if the device's work begins before the calls that launched it; see `EARLY_SHARE`.
        """
        start = self.on_device.array_at("start", location)
        call = self.on_device.array_at("call", location)
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
        for events in self.on_device.of_kind.values():
            events.array_at("call", location)[:] = UNKNOWN
            events.array_at("returned", location)[:] = UNKNOWN

    def _keep_steps(self) -> None:
        """Drop the events that belong to no step, by the rules of the class."""
        steps = self.steps
        device_windows = {location: steps_of_device.window for location, steps_of_device in steps.items()}
        before_steps: dict[Location, dict[str, Mask]] = {}
        for location in steps:
            # The steps of a device are those of the host if too few of its launching calls were recorded. Then they do
            # not show reliably what was launched before the first step.
            if steps[location].extent != DEVICE:
                continue
            is_before = launched_before_steps(self.on_device, self.marks, location)
            if is_before is not None:
                before_steps[location] = self.on_device.by_kind(location, is_before)

        for event_kind, events in self.on_device.of_kind.items():
            is_kept = self._in_steps(events, device_windows)
            if self.linked:
                for location, is_before_of_kind in before_steps.items():
                    is_kept[events.slice_of(location)] &= ~is_before_of_kind[event_kind]
            self._events[event_kind] = events.where(is_kept)
            if event_kind == "kernels" and self.communication is not None:
                # The array `kernel` holds positions among all kernels, before any is dropped, as `is_kept` does.
                positions = self.communication.arrays["kernel"]
                self.communication = self.communication.where(is_kept.take(positions))
        self.on_device = DeviceEvents(self._events)
        for event_kind in ("ranges", "api"):
            if event_kind in self._events:
                host_events = self._events[event_kind]
                windows = {owner: self.marks.window(*owner) for owner in host_events.locations}
                self._events[event_kind] = host_events.where(_inside(host_events, "start", windows))

    def _in_steps(self, events: Events, device_windows: dict[Location, Window]) -> Mask:
        """Return the mask of the events on devices that belong to the steps.

        An event whose launching call was recorded belongs to them if the call began in the window of the steps on the
        host. Any other event belongs to them if it began in the window in which its device ran the steps. If no
        launching calls were joined, each event belongs to them if it began in the window on the host.
        """
        host_windows = {location: self.marks.window(*location[:2]) for location in events.locations}
        if not self.linked:
            return _inside(events, "start", host_windows)
        ran_in_steps = _inside(events, "start", host_windows | device_windows)
        launched_in_steps = _inside(events, "call", host_windows)
        is_unknown = events.arrays["call"] == UNKNOWN
        return np.where(is_unknown, ran_in_steps, launched_in_steps)


def _add_classes(kernels: Events) -> None:
    """Add the fields `class` and `collective` to each group of kernels, as judged by the name of its kernels."""
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
    """Return the mask of the events whose time lies in the window [first, last) of their location.

    `name`: the array that holds the times. `windows`: must have a window for each location.
    """
    times = events.arrays[name]
    is_inside = np.zeros(len(times), bool)
    for location, part in events.locations.items():
        first, last = windows[location]
        times_of_part = times[part]
        is_inside[part] = (first <= times_of_part) & (times_of_part < last)
    return is_inside
