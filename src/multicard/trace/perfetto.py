"""A capture as Chrome JSON trace events, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, and
https://perfetto.dev/docs/getting-started/other-formats. Times are microseconds from the first event of their trace.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write
from multicard.core.text import printable
from multicard.trace.api_names import api_name
from multicard.trace.collect import collect
from multicard.trace.events import Events
from multicard.trace.kernel_classes import kernel_class
from multicard.trace.model import Integers, Trace
from multicard.trace.steps import Marks

ON_DEVICE = ("kernels", "memory")
SLICES = ("ranges", "api", *ON_DEVICE)


def write_perfetto(traces: Sequence[Trace], out: Path) -> None:
    """Write the events of one capture, gzipped if `out` ends in .gz.

    The file has a process for each process of the capture, and another one for each device of a process. Each thread
    has a track for its ranges and one for its API calls. Each stream has a track for its kernels and one for its memory
    operations. Each process with steps has a track for these. Perfetto would drop slices that overlap without nesting,
    so these are on further tracks of the same name. A row that repeats a call with its backtrace is left out.

    Raises `TraceError` if there are no events of the kinds `SLICES`, or a trace turns out to be damaged. Raises
    `UserError` if the file cannot be written, such as on a full disk.
    """
    events: dict[str, Events] = {}
    for event_kind in SLICES:
        collected = collect(traces, event_kind, ("start", "duration"))
        if collected is not None and len(collected.code):
            events[event_kind] = collected
    if not events:
        raise TraceError(f"{', '.join(trace.name for trace in traces)}: no events to show on a timeline")
    if "api" in events:
        calls = events["api"]
        is_call = calls.mask(api != "backtrace" for api in calls.group_field("api"))
        events["api"] = calls.where(is_call)
    with atomic_write(out) as temporary, temporary.open("wb") as file:
        if out.suffix == ".gz":
            # Without a name and a time, the same capture always gives the same bytes.
            with gzip.GzipFile(filename="", mode="wb", compresslevel=4, fileobj=file, mtime=0) as compressed:
                _write(compressed, traces, events)
        else:
            _write(file, traces, events)


def _write(file: BinaryIO | gzip.GzipFile, traces: Sequence[Trace], events: Mapping[str, Events]) -> None:
    """Write the JSON of a capture."""
    separator = b'{"displayTimeUnit":"ns","traceEvents":[\n'
    for line in _Timeline(traces, events).lines():
        file.write(separator + line.encode())
        separator = b",\n"
    file.write(b"\n]}\n")


def lanes_of(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return a lane from 0 on for each slice of a track, so that slices of one lane nest or do not overlap.

    The slices must be ordered by start; if slices start together, the longest must come first.

    In the example the second slice lies in the first, so both are on lane 0. The third, from 4 to 12, starts in the
    first one and ends after it, so it needs another lane. The fourth starts when all others have ended:

    >>> lanes_of([0, 1, 4, 12], [9, 3, 12, 15])
    [0, 0, 1, 0]
    """
    # For each lane the ends of the slices that have not ended, the innermost slice last.
    open_ends_of_lanes: list[list[int]] = []
    lanes: list[int] = []
    for start, end in zip(starts, ends, strict=True):
        for lane, open_ends in enumerate(open_ends_of_lanes):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            fits = not open_ends or open_ends[-1] >= end
            if fits:
                open_ends.append(end)
                lanes.append(lane)
                break
        else:
            lanes.append(len(open_ends_of_lanes))
            open_ends_of_lanes.append([end])
    return lanes


class _Ids:
    """Gives each process and track a number that no other has, and collects the events of the file that name them."""

    def __init__(self) -> None:
        self.naming_events: list[str] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def process(self, key: tuple[Any, ...], name: str) -> int:
        """Return the number of the process with this key; the first call with a key makes the number."""
        if key not in self._numbers:
            number = len(self._numbers) + 1
            self._numbers[key] = number
            self._name("process", number, 0, name, number)
        return self._numbers[key]

    def track(self, process: int, key: tuple[Any, ...], name: str) -> int:
        """Return the number of the track with this key in a process; the first call with a key makes the number."""
        full_key = (process, *key)
        if full_key not in self._numbers:
            number = len(self._numbers) + 1
            self._numbers[full_key] = number
            self._name("thread", process, number, name, number)
        return self._numbers[full_key]

    def _name(self, subject: str, process: int, thread: int, name: str, position: int) -> None:
        where = f'"ts":0,"pid":{process},"tid":{thread}'
        self.naming_events += [
            f'{{"ph":"M","name":"{subject}_name",{where},"args":{{"name":{_text(name)}}}}}',
            f'{{"ph":"M","name":"{subject}_sort_index",{where},"args":{{"sort_index":{position}}}}}',
        ]


class _Track(NamedTuple):
    """The number of a process, and the name of a track of it; overlapping slices are on several tracks of one name."""

    process: int
    name: str


class _Place(NamedTuple):
    """Where slices of one group lie; these numbers decide their track.

    `device`: None for slices of the host, and where the device is unknown. `line`: the number of the thread on the host
    or of the stream on the device; None if it was not recorded.
    """

    trace: int
    process: int | None
    device: int | None
    line: int | None

    @property
    def order(self) -> tuple[tuple[bool, int], ...]:
        """Order by these numbers, from the first to the last; None comes after all numbers."""
        return tuple((number is None, number or 0) for number in self)


class _Label(NamedTuple):
    """How slices of one group are shown; `track` is the name of their track."""

    place: _Place
    category: str
    name: str
    arguments: Mapping[str, str | None]
    track: str


class _Group(NamedTuple):
    """What slices of one group have in common.

    `origin`: the time that counts as 0, in nanoseconds on the clock of their trace. `head`: the JSON of a slice before
    the number of its track. `tail`: the JSON of a slice after its times.
    """

    track: _Track
    origin: int
    head: str
    tail: str


class _Slices(NamedTuple):
    """Slices of one kind of events: arrays of one length, in the order in which `lanes_of` needs them on each track.

    `code`: the index of the slice's group. `track`: the index of its track. `start`, `end`: nanoseconds after the
    origin of its group.
    """

    code: Integers
    track: Integers
    start: Integers
    end: Integers


def _ordered_slices(events: Events, groups: Mapping[int, _Group], tracks: Sequence[_Track]) -> _Slices:
    """Return events as slices, track by track; `groups` is by code."""
    index_of_track = {track: index for index, track in enumerate(tracks)}
    track_of_code = np.zeros(len(groups), np.int64)
    origin_of_code = np.zeros(len(groups), np.int64)
    for code, group in groups.items():
        track_of_code[code] = index_of_track[group.track]
        origin_of_code[code] = group.origin
    track = track_of_code[events.code]
    origin = origin_of_code[events.code]
    start = events.arrays["start"].astype(np.int64) - origin
    duration = events.arrays["duration"].astype(np.int64)
    end = start + duration
    # Ordered by track, then by start; if slices start together, the longest comes first.
    order = np.lexsort((-end, start, track))
    return _Slices(events.code[order], track[order], start[order], end[order])


class _Timeline:
    """The lines of the file for one capture."""

    def __init__(self, traces: Sequence[Trace], events: Mapping[str, Events]) -> None:
        self._traces = traces
        self._events = events
        self._marks = Marks(events.get("ranges"), traces)
        self._origins = _origins(events, self._marks)
        self._ids = _Ids()

    def lines(self) -> Iterator[str]:
        """Yield the steps, the slices of all events, and the names of processes and tracks."""
        yield from self._steps()
        for name, events in self._events.items():
            yield from self._slices(name, events)
        yield from self._ids.naming_events

    def _steps(self) -> Iterator[str]:
        for (trace, process), steps in self._marks.steps.items():
            pid = self._process(trace, process)
            tid = self._ids.track(pid, ("steps",), "steps")
            starts = (steps.starts - self._origins[trace]).tolist()
            durations = (steps.ends - steps.starts).tolist()
            for number, (start, duration) in enumerate(zip(starts, durations, strict=True), 1):
                times = f'"ts":{_microseconds(start)},"dur":{_microseconds(duration)}'
                yield f'{{"ph":"X","cat":"step","name":"step {number}","pid":{pid},"tid":{tid},{times}}}'

    def _process(self, trace: int, process: int | None, device: str = "") -> int:
        """Return the number in the file of a process, or of one of its devices if `device` is not empty."""
        rank = self._traces[trace].ranks.get(process) if process is not None else None
        if device:
            name = f"device {device} of process {process}"
        elif rank is None:
            name = f"process {process}"
        else:
            name = f"process {process} · rank {rank}"
        if len(self._traces) > 1:
            name += f", {self._traces[trace].name}"
        return self._ids.process((trace, process, device), name)

    def _slices(self, event_kind: str, events: Events) -> Iterator[str]:
        """Yield the events of a kind as slices, track by track."""
        groups = self._groups(event_kind, events)
        tracks = list(dict.fromkeys(group.track for group in groups.values()))
        slices = _ordered_slices(events, groups, tracks)
        tids = self._track_numbers(event_kind, slices, tracks)
        codes = slices.code.tolist()
        starts = slices.start.tolist()
        durations = (slices.end - slices.start).tolist()
        for code, tid, start, duration in zip(codes, tids, starts, durations, strict=True):
            group = groups[code]
            times = f'"ts":{_microseconds(start)},"dur":{_microseconds(duration)}'
            yield f"{group.head}{tid},{times}{group.tail}"

    def _track_numbers(self, event_kind: str, slices: _Slices, tracks: Sequence[_Track]) -> list[int]:
        """Return the number in the file of each slice's track; the lanes of a track are tracks of the file."""
        tids: list[int] = []
        slices_of_tracks = _parts(slices.track, len(tracks))
        for (pid, name), part in zip(tracks, slices_of_tracks, strict=True):
            starts = slices.start[part].tolist()
            ends = slices.end[part].tolist()
            for lane in lanes_of(starts, ends):
                key = (event_kind, name, lane)
                tids.append(self._ids.track(pid, key, name))
        return tids

    def _groups(self, event_kind: str, events: Events) -> dict[int, _Group]:
        """Return what the slices of each group have in common, by code, in the order of their places."""
        labels = _labels(event_kind, events)
        groups: dict[int, _Group] = {}
        # Processes are numbered in the order in which they are named. The order of codes is that in which threads read
        # the events, so it differs from one time to the next.
        for code in sorted(range(len(labels)), key=lambda code: labels[code].place.order):
            label = labels[code]
            trace, process, device, _ = label.place
            device_name = str(device) if event_kind in ON_DEVICE else ""
            pid = self._process(trace, process, device_name)
            arguments = {name: value for name, value in label.arguments.items() if value is not None}
            groups[code] = _Group(
                track=_Track(pid, label.track),
                origin=self._origins[trace],
                head=f'{{"ph":"X","cat":"{label.category}","name":{_text(label.name)},"pid":{pid},"tid":',
                tail=f',"args":{json.dumps(arguments)}}}' if arguments else "}",
            )
        return groups


def _parts(numbers: Integers, count: int) -> list[slice]:
    """Return for each of the numbers 0 to `count` - 1 the slice of a sorted array in which it occurs.

    >>> _parts(np.array([0, 0, 1]), 3)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 3, None)]
    """
    counts = np.bincount(numbers, minlength=count)
    edges = np.cumsum([0, *counts]).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]


def _origins(events: Mapping[str, Events], marks: Marks) -> dict[int, int]:
    """Return for each trace with events or steps the time that counts as 0: the start of the first of these."""
    first_starts: list[tuple[int, int]] = []
    for recorded in events.values():
        starts = recorded.arrays["start"]
        for (trace, *_), part in recorded.locations.items():
            first_event = int(starts[part].min())
            first_starts.append((trace, first_event))
    for (trace, _), steps in marks.steps.items():
        first_step, _ = steps.window
        first_starts.append((trace, first_step))
    origins: dict[int, int] = {}
    for trace, start in first_starts:
        origins[trace] = min(start, origins.get(trace, start))
    return origins


def _labels(event_kind: str, events: Events) -> list[_Label]:
    """Return how the slices of each group of events of one of the kinds `SLICES` are shown, by code."""
    if event_kind == "ranges":
        return _range_labels(events)
    if event_kind == "api":
        return _call_labels(events)
    if event_kind == "kernels":
        return _kernel_labels(events)
    return _memory_labels(events)


def _range_labels(ranges: Events) -> list[_Label]:
    labels: list[_Label] = []
    for trace, process, domain, name, thread in ranges.group_fields("process", "domain", "name", "thread"):
        place = _Place(trace, process, None, thread)
        track = f"{_thread(thread)}: ranges"
        labels.append(_Label(place, "range", name, {"domain": domain}, track))
    return labels


def _call_labels(calls: Events) -> list[_Label]:
    api_of_all = api_name(calls.group_field("name"))
    labels: list[_Label] = []
    for trace, process, api, name, thread in calls.group_fields("process", "api", "name", "thread"):
        place = _Place(trace, process, None, thread)
        # Such as "thread 7: CUDA calls".
        track = f"{_thread(thread)}: {api_of_all} calls"
        labels.append(_Label(place, "cuda_api", name, {"api": api}, track))
    return labels


def _kernel_labels(kernels: Events) -> list[_Label]:
    labels: list[_Label] = []
    for trace, process, device, name, stream in kernels.group_fields("process", "device", "name", "stream"):
        class_name = kernel_class(name)
        category = "collective" if class_name == "communication" else "kernel"
        place = _Place(trace, process, device, stream)
        track = f"{_stream(stream)}kernels"
        labels.append(_Label(place, category, name, {"class": class_name}, track))
    return labels


def _memory_labels(memory: Events) -> list[_Label]:
    labels: list[_Label] = []
    fields = memory.group_fields("process", "device", "operation", "host_memory", "stream")
    for trace, process, device, operation, host_memory, stream in fields:
        place = _Place(trace, process, device, stream)
        track = f"{_stream(stream)}memory operations"
        labels.append(_Label(place, "memory", operation, {"host_memory": host_memory}, track))
    return labels


def _thread(thread: int | None) -> str:
    return "thread unknown" if thread is None else f"thread {thread}"


def _stream(stream: int | None) -> str:
    return "" if stream is None else f"stream {stream}: "


def _microseconds(nanoseconds: int) -> str:
    """Format nanoseconds as microseconds, exact where a float would round.

    >>> _microseconds(1_234_567), _microseconds(-5)
    ('1234.567', '-0.005')
    """
    if nanoseconds < 0:
        return f"-{_microseconds(-nanoseconds)}"
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _text(text: str) -> str:
    """Return a text as JSON, with � for characters that cannot be printed, such as those that control a terminal."""
    return json.dumps(printable(text))
