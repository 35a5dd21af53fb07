"""Read the events of one kind from all traces of a capture, in several threads, into arrays of narrow types."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from multicard.core.system import in_parallel
from multicard.core.text import counted, listed
from multicard.trace.api_names import call_name
from multicard.trace.events import Events, Location, Owner
from multicard.trace.model import KINDS, BatchReader, EventSource, Integers, Trace


def collect(
    traces: Sequence[Trace], kind: str, numbers: Sequence[str], groups: Sequence[str] | None = None
) -> Events | None:
    """Return all events of a kind; None if no trace recorded this kind.

    `numbers`: names of the numbers that are kept for each event. `groups`: names of the columns that describe a group,
    by default all columns of the kind; fewer columns make fewer groups, and take less time.

    If "start" is among the numbers, events are sorted by location; else all events have the location (). If "duration"
    is among the numbers, events of a negative duration, which broken captures hold, are left out and counted by
    process. Then "process" must be among the groups.
    """
    fields = tuple(groups or KINDS[kind].groups)
    numbers = tuple(numbers)
    sources: dict[int, EventSource] = {}
    for trace_number, trace in enumerate(traces):
        if trace.has(kind):
            sources[trace_number] = trace.open(kind, numbers, fields)
    if not sources:
        return None

    # First, read every part. Its events keep the order in which the trace holds them.
    jobs = [_Job(trace_number, reader) for trace_number, source in sources.items() for reader in source.parts]
    parts = in_parallel(partial(_read, numbers), jobs)

    # Second, split every part by location. A source can describe all of its groups only after it was read completely.
    layout = _layout(kind, fields, sources, has_locations="start" in numbers)
    left_out = _left_out_by_process(parts, layout, fields)
    divided = in_parallel(layout.divide, parts)
    # What was read is freed before the arrays are joined.
    parts.clear()
    code, *arrays = in_parallel(partial(_joined_by_location, divided), (_CODE, *numbers))
    return Events(
        fields=fields,
        groups=layout.groups,
        code=code,
        arrays=dict(zip(numbers, arrays, strict=True)),
        locations=layout.slices(divided),
        left_out=left_out,
    )


# Name in `_Pieces` of the array with the code of each event's group. All other names are those of numbers.
_CODE = "code"

# Arrays of some events by name, each in pieces that follow each other. The pieces are joined as late as possible,
# because each join needs the memory of the whole array once more.
_Pieces = dict[str, list[Integers]]


@dataclass(frozen=True)
class _Job:
    """A part of the events of a trace, to be read by one thread."""

    trace: int
    read: BatchReader


@dataclass(frozen=True)
class _Part:
    """The events that a `_Job` read, and the number of those that it left out for their negative duration, by code.

    The codes are those of the trace, which numbers its groups from 0.
    """

    trace: int
    pieces: _Pieces
    left_out: Counter[int]


@dataclass(frozen=True)
class _Layout:
    """The groups of all traces, and the location of each group, by which events are sorted in the arrays of `Events`.

    `first_code`: by the number of a trace, the position in `groups` of the first group of this trace.
    `location_of_code`: for each group, the position in `locations` of its location. The type of this array, uint16 or
    int32, can also hold each code of a group.

    With two groups on device 0 and one on device 1, the events of a part are sorted by device and keep their order:

    >>> groups = [(0, 7, 0, "a"), (0, 7, 1, "b"), (0, 7, 0, "c")]
    >>> layout = _Layout(groups, {0: 0}, locations=[(0, 7, 0), (0, 7, 1)], location_of_code=np.array([0, 1, 0]))
    >>> part = _Part(0, {"code": [np.array([1, 0, 2])], "start": [np.array([10, 20, 30])]}, Counter())
    >>> on_first, on_second = layout.divide(part)
    >>> on_first["start"][0].tolist(), on_second["start"][0].tolist()
    ([20, 30], [10])
    """

    groups: list[tuple[Any, ...]]
    first_code: dict[int, int]
    locations: list[Location]
    location_of_code: Integers

    def divide(self, part: _Part) -> list[_Pieces]:
        """Return the arrays of a part split by location, in the order of `locations`.

        Their codes are positions in `groups`, which has the groups of all traces.
        """
        pieces = part.pieces | {_CODE: self._global_codes(part)}
        if len(self.locations) == 1:
            return [pieces]
        arrays = {name: _joined(values) for name, values in pieces.items()}
        location_of_event = self.location_of_code.take(arrays[_CODE])
        # A stable sort keeps the order of recording; for codes of 16 bits it is a radix sort.
        order = np.argsort(location_of_event, kind="stable")
        counts = np.bincount(location_of_event, minlength=len(self.locations))
        slices = _consecutive_slices(counts)

        by_location: list[_Pieces] = [{} for _ in self.locations]
        for name, values in arrays.items():
            ordered = values.take(order)
            for pieces_of_location, slice_of_location in zip(by_location, slices, strict=True):
                pieces_of_location[name] = [ordered[slice_of_location]]
        return by_location

    def _global_codes(self, part: _Part) -> list[Integers]:
        codes = part.pieces[_CODE]
        first = self.first_code[part.trace]
        if first == 0:
            return codes
        dtype = self.location_of_code.dtype
        return [code.astype(dtype) + dtype.type(first) for code in codes]

    def slices(self, divided: Sequence[Sequence[_Pieces]]) -> dict[Location, slice]:
        """Return the slice of each location in the joined arrays; locations without events have none.

        `divided`: what `divide` returned for each part.
        """
        counts = [0] * len(self.locations)
        for part in divided:
            for index, pieces in enumerate(part):
                counts[index] += sum(len(codes) for codes in pieces[_CODE])
        slices: dict[Location, slice] = {}
        for location, slice_of_location in zip(self.locations, _consecutive_slices(counts), strict=True):
            if slice_of_location.start < slice_of_location.stop:
                slices[location] = slice_of_location
        return slices


def _layout(kind: str, fields: tuple[str, ...], sources: Mapping[int, EventSource], *, has_locations: bool) -> _Layout:
    """Return the layout of the events of all sources, which are given by the number of their trace.

    All parts of the sources must have been read. If `has_locations` is False, all events have the location ().
    """
    groups: list[tuple[Any, ...]] = []
    first_code: dict[int, int] = {}
    for trace_number, source in sources.items():
        first_code[trace_number] = len(groups)
        groups += [(trace_number, *values) for values in _described(kind, fields, source)]

    # A location consists of these elements of a group: the trace, which is the first one, the process, and the device
    # if the groups have one.
    indices: list[int] = []
    if has_locations:
        indices = [0, *(fields.index(name) + 1 for name in ("process", "device") if name in fields)]
    # Locations are numbered in the order of the groups.
    number_of_location: dict[Location, int] = {}
    location_numbers: list[int] = []
    for group in groups:
        location = tuple(group[index] for index in indices)
        number = number_of_location.setdefault(location, len(number_of_location))
        location_numbers.append(number)
    dtype = np.uint16 if len(groups) <= np.iinfo(np.uint16).max else np.int32
    return _Layout(
        groups=groups,
        first_code=first_code,
        locations=list(number_of_location),
        location_of_code=np.array(location_numbers, dtype),
    )


def _described(kind: str, fields: tuple[str, ...], source: EventSource) -> list[tuple[Any, ...]]:
    """Return the values of the fields of each group; functions of the API have the names that programs use."""
    groups = source.described()
    if kind != "api" or "name" not in fields:
        return groups
    index = fields.index("name")
    return [(*group[:index], call_name(group[index]), *group[index + 1 :]) for group in groups]


def _consecutive_slices(lengths: Iterable[int]) -> list[slice]:
    """Return slices of these lengths that follow each other from 0 on.

    >>> _consecutive_slices([2, 3])
    [slice(0, 2, None), slice(2, 5, None)]
    """
    edges = np.cumsum([0, *lengths]).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]


def _read(numbers: tuple[str, ...], job: _Job) -> _Part:
    """Read a part of a trace into narrow arrays."""
    pieces: _Pieces = {name: [] for name in (_CODE, *numbers)}
    left_out = Counter[int]()
    for batch in job.read():
        arrays = {_CODE: _narrow_code(batch.group)}
        for name in numbers:
            arrays[name] = _narrow(batch.numbers[name])
        if "duration" in numbers:
            arrays, reversed_codes = _without_reversed(arrays)
            left_out.update(reversed_codes)
        for name, values in arrays.items():
            pieces[name].append(values)
    # `_Layout.divide` needs whole arrays. Without starts there is only one location, so nothing is divided.
    if "start" in numbers:
        pieces = {name: [_joined(values)] for name, values in pieces.items()}
    return _Part(job.trace, pieces, left_out)


def _without_reversed(arrays: dict[str, Integers]) -> tuple[dict[str, Integers], list[int]]:
    """Return the arrays of a batch without events of a negative duration, and the code of each event left out."""
    durations = arrays["duration"]
    # `_narrow` made durations unsigned unless one of them is negative, or too long for 32 bits.
    if durations.dtype == np.uint32 or not len(durations) or durations.min() >= 0:
        return arrays, []
    is_reversed = durations < 0
    kept = np.flatnonzero(~is_reversed)
    kept_arrays = {name: values.take(kept) for name, values in arrays.items()}
    return kept_arrays, arrays[_CODE][is_reversed].tolist()


def _left_out_by_process(parts: Iterable[_Part], layout: _Layout, fields: tuple[str, ...]) -> dict[Owner, int]:
    """Return the number of events that the parts left out, by trace and process; processes without any are left out."""
    left_out = Counter[Owner]()
    for part in parts:
        for code, count in part.left_out.items():
            trace, *values = layout.groups[layout.first_code[part.trace] + code]
            process = values[fields.index("process")]
            left_out[trace, process] += count
    return dict(left_out)


def _narrow_code(code: Integers) -> Integers:
    """Return codes as uint16 if all of them fit."""
    if code.max(initial=0) <= np.iinfo(np.uint16).max:
        return code.astype(np.uint16)
    return code


def _narrow(values: Integers) -> Integers:
    """Return 64-bit integers as uint32 if all of them fit, which takes half the space."""
    if values.dtype != np.int64 or not len(values):
        return values
    if values.min() >= 0 and values.max() <= np.iinfo(np.uint32).max:
        return values.astype(np.uint32)
    return values


def _joined_by_location(divided: Sequence[Sequence[_Pieces]], name: str) -> Integers:
    """Return the array `name` of all parts: one location after another, and within a location one part after another.

    `divided`: what `_Layout.divide` returned for each part.
    """
    pieces: list[Integers] = []
    for pieces_of_parts in zip(*divided, strict=True):
        for pieces_of_part in pieces_of_parts:
            pieces += pieces_of_part[name]
    return _joined(pieces)


def _joined(pieces: list[Integers]) -> Integers:
    """Join arrays into one, whose type is wide enough for all of them. Empty arrays do not affect the type.

    If only one array is not empty, it is returned as it is. If all are empty, the result is an empty int64 array.
    """
    pieces = [piece for piece in pieces if len(piece)]
    if not pieces:
        return np.empty(0, np.int64)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


_NAMES = {
    "ranges": "range", "api": "call", "kernels": "kernel", "memory": "memory operation", "graphs": "graph replay",
    "host_calls": "call of a library",
}  # fmt: skip


def left_out_notices(traces: Sequence[Trace], events: Mapping[str, Events | None]) -> list[str]:
    """Return a line for each trace of which events were left out because they end before they begin.

    `events`: by kind; None for a kind that was not read.
    """
    notices = []
    for trace_number, trace in enumerate(traces):
        phrases: list[str] = []
        total = 0
        for event_kind, recorded in events.items():
            left_out = {} if recorded is None else recorded.left_out
            count = sum(count for (trace_of_count, _), count in left_out.items() if trace_of_count == trace_number)
            if count:
                phrases.append(counted(count, _NAMES[event_kind]))
                total += count
        if phrases:
            verb = "ends before it begins" if total == 1 else "end before they begin"
            notices.append(f"{trace.name}: {listed(phrases)} {verb}, left out")
    return notices
