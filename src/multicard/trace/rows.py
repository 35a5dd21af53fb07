"""Rows of the activity tables, from the events of a capture.

The public functions that take a capture make the rows of one table each. They are called only for a capture that holds
the events that the table requires (`Activity` in `tables`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.core.layout import PHASES
from multicard.core.system import in_parallel
from multicard.core.values import Row
from multicard.trace.activity_row import ActivityRow
from multicard.trace.api_calls import LAUNCH
from multicard.trace.captured_events import STEPS, CapturedEvents
from multicard.trace.collectives import CannotTell, by_message_size, message_columns
from multicard.trace.events import Events
from multicard.trace.fp32_products import arithmetic
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers
from multicard.trace.statistics import Grouped, Statistics, statistics
from multicard.trace.steps import STEP, StepOrPhase
from multicard.trace.stragglers import transfer_times

Rows = list[ActivityRow]

# The number of the trace, the process id and some further fields of a group of events. They identify what a row is
# about.
Key = tuple[Any, ...]

# The statistics of at least this many values are computed in threads. For fewer, starting threads would take longer.
VALUES_WORTH_THREADS = 10_000

# Statistics of durations, which are in nanoseconds and become columns in seconds; and statistics of sizes in bytes.
TIME_STATISTICS = ("total", "mean", "median", "min", "max", "std")
SIZE_STATISTICS = ("mean", "median", "min", "max", "std")


def _seconds(durations: Statistics) -> Row:
    """Return the columns of statistics of durations, which are in nanoseconds."""
    row: Row = {"calls": durations.calls}
    for name in TIME_STATISTICS:
        value = getattr(durations, name)
        row[f"{name}_s"] = None if value is None else value / 1e9
    return row


def _summed(values: Grouped, events: Events, keys: Sequence[Key | None]) -> list[tuple[Key, Statistics]]:
    """Return each key with the statistics of the values of all groups that have this key.

    The keys are in the order of the groups, sorted by their `str`, in which they first occur. `keys`: the key of each
    group, by code. A group is left out if its key is None or it has no values.
    """
    codes_of_key: dict[Key, list[int]] = {}
    for code in sorted(range(len(events.groups)), key=lambda code: str(events.groups[code])):
        key = keys[code]
        if key is not None and code in values:
            codes_of_key.setdefault(key, []).append(code)

    def statistics_of(codes: list[int]) -> Statistics:
        return statistics(values.of(codes))

    if len(values) < VALUES_WORTH_THREADS:
        results = [statistics_of(codes) for codes in codes_of_key.values()]
    else:
        results = in_parallel(statistics_of, codes_of_key.values())
    return list(zip(codes_of_key, results, strict=True))


def _longest_first(sums: Iterable[tuple[Key, Statistics]]) -> list[tuple[Key, Statistics]]:
    """Return keys and statistics process by process, longest total first within a process."""

    def order(item: tuple[Key, Statistics]) -> tuple[int, str, int]:
        key, durations = item
        trace, process, *_ = key
        return trace, str(process), -durations.total

    return sorted(sums, key=order)


def _row(key: Key, columns: Sequence[str], *further_cells: Row) -> ActivityRow:
    """Return the row of a key, whose fields after trace and process are the cells of `columns`."""
    trace, process, *fields = key
    cells: Row = dict(zip(columns, fields, strict=True))
    for further in further_cells:
        cells |= further
    return ActivityRow(trace, process, cells)


def phases(capture: CapturedEvents) -> Rows:
    """Return a row for each step and each phase, process by process and in order of time within a process.

    `start_s` counts from the first step or phase of the same trace.

    Raises `CannotTell` if nothing marks steps or phases.
    """
    marked = capture.marks.steps_and_phases
    if not marked:
        raise CannotTell(f"no range is named {STEP}, {', '.join(PHASES[:-1])} or {PHASES[-1]}")
    if capture.scope == STEPS:
        marked = [mark for mark in marked if _begins_in_steps(mark, capture)]
    origins: dict[int, int] = {}
    for mark in marked:
        origins[mark.trace] = min(origins.get(mark.trace, mark.start), mark.start)
    rows: Rows = []
    for mark in marked:
        cells: Row = {
            "step": mark.step,
            "phase": mark.phase,
            "start_s": (mark.start - origins[mark.trace]) / 1e9,
            "duration_s": mark.duration / 1e9,
        }
        rows.append(ActivityRow(mark.trace, mark.process, cells))
    return rows


def _begins_in_steps(mark: StepOrPhase, capture: CapturedEvents) -> bool:
    """Return True if a step or phase begins between the start of the first step and the end of the last one."""
    first, last = capture.marks.window(mark.trace, mark.process)
    return bool(first <= mark.start < last)


def sums(kind: str, fields: Mapping[str, str]) -> Callable[[CapturedEvents], Rows]:
    """Return a function that makes rows with statistics of the durations of a kind of events.

    There is a row for each process and each combination of values of the fields. `fields`: for each column of the table
    the field of the events' groups that it shows.
    """

    def make(capture: CapturedEvents) -> Rows:
        events = capture.required(kind)
        keys = events.group_fields("process", *fields.values())
        sums_of_keys = _longest_first(_summed(events.durations, events, keys))
        return [_row(key, tuple(fields), _seconds(durations)) for key, durations in sums_of_keys]

    return make


def fp32_products(capture: CapturedEvents) -> Rows:
    """Return a row for each device and `Arithmetic`: the kernels whose names show it, and the longest of them."""
    kernels = capture.required("kernels")
    names = kernels.group_field("name")
    shown = [arithmetic(name) for name in names]
    keys: list[Key | None] = []
    longest: dict[Key, tuple[int, str]] = {}
    for code, location in enumerate(kernels.group_fields("process", "device")):
        kind = shown[code]
        if kind is None or code not in kernels.durations:
            keys.append(None)
            continue
        key = (*location, kind.value)
        keys.append(key)
        group_ns = int(kernels.durations.of([code]).sum(dtype=np.int64))
        longest[key] = max(longest.get(key, (0, "")), (group_ns, names[code]))
    rows: Rows = []
    for found, durations in _longest_first(_summed(kernels.durations, kernels, keys)):
        rows.append(_row(found, ("device", "arithmetic"), {"kernel": longest[found][1]}, _seconds(durations)))
    return rows


def launches(capture: CapturedEvents) -> Rows:
    """Return a row for each device, on the delay between launching calls and the starts of their kernels.

    The latency counts from the start of the call, and the queue delay from its end, so that it may be negative. A
    device without any kernel whose call was recorded has a row without delays.
    """
    kernels = capture.required("kernels")
    rows: Rows = []
    for location in sorted(kernels.locations, key=str):
        kernel_start = kernels.array_at("start", location)
        call_start = kernels.array_at("call", location)
        call_end = kernels.array_at("returned", location)
        joined = np.flatnonzero(call_start != UNKNOWN)
        cells: Row = {"kernels": len(kernel_start), "joined": len(joined)}
        if len(joined):
            joined_start = kernel_start.take(joined)
            cells |= _delays("latency", joined_start - call_start.take(joined))
            cells |= _delays("queue_delay", joined_start - call_end.take(joined))
        rows.append(_row(location, ("device",), cells))
    return rows


def _delays(name: str, nanoseconds: Integers) -> Row:
    return {
        f"median_{name}_s": float(np.median(nanoseconds)) / 1e9,
        f"max_{name}_s": int(nanoseconds.max()) / 1e9,
    }


def _communication(capture: CapturedEvents) -> Events:
    """Return the communication kernels of a capture that holds kernels.

    Raises `KeyError` if it holds none.
    """
    if capture.communication is None:
        raise KeyError("communication")
    return capture.communication


def collectives(capture: CapturedEvents) -> Rows:
    """Return a row for each device and collective: its communication kernels and their messages."""
    kernels = _communication(capture)
    transfer = transfer_times(kernels, capture.matching)
    keys = kernels.group_fields("process", "device", "collective")
    rows: Rows = []
    for key, durations in _longest_first(_summed(kernels.durations, kernels, keys)):
        is_of_row = kernels.mask(key_of_group == key for key_of_group in keys)
        messages = message_columns(kernels, np.flatnonzero(is_of_row), transfer)
        rows.append(_row(key, ("device", "collective"), _seconds(durations), messages))
    return rows


def message_sizes(capture: CapturedEvents) -> Rows:
    """Return a row for each device, collective, communicator and size of messages.

    Raises `CannotTell` if no size is known.
    """
    kernels = _communication(capture)
    transfer = transfer_times(kernels, capture.matching)
    rows: Rows = []
    for messages in by_message_size(kernels):
        durations = statistics(kernels.arrays["duration"].take(messages.positions))
        cells: Row = {
            "device": messages.device,
            "collective": messages.collective,
            "group": messages.communicator,
            "ranks": messages.ranks,
            "size_bytes": messages.size_bytes,
        }
        cells |= message_columns(kernels, messages.positions, transfer) | _seconds(durations)
        rows.append(ActivityRow(messages.trace, messages.process, cells))
    return rows


def memory_operations(capture: CapturedEvents) -> Rows:
    """Return a row for each device, operation and kind of host memory: the times and bytes of copies and fills.

    The columns of bytes are empty if no size of the row's operations was recorded. The bandwidth is the sum of the
    recorded sizes divided by the total time of those operations whose size was recorded; it is None if that time is 0.
    """
    memory = capture.required("memory")
    fields = ("device", "operation", "host_memory")
    keys = memory.group_fields("process", *fields)
    has_size = memory.arrays["bytes"] >= 0
    codes_with_size = memory.code[has_size]
    sizes = Grouped(codes_with_size, memory.arrays["bytes"][has_size])
    size_of_key = dict(_summed(sizes, memory, keys))
    durations_with_size = memory.durations
    if not has_size.all():
        durations_with_size = Grouped(codes_with_size, memory.arrays["duration"][has_size])
    time_of_key = dict(_summed(durations_with_size, memory, keys))
    rows: Rows = []
    for key, durations in _longest_first(_summed(memory.durations, memory, keys)):
        bytes_cells: Row = {}
        if key in size_of_key:
            bytes_cells = _bytes(size_of_key[key], time_of_key[key].total / 1e9)
        rows.append(_row(key, fields, _seconds(durations), bytes_cells))
    return rows


def _bytes(sizes: Statistics, seconds: float) -> Row:
    """Return the columns of statistics of sizes in bytes, and the bandwidth of copying them in so many seconds."""
    cells: Row = {"bytes": sizes.total}
    for name in SIZE_STATISTICS:
        cells[f"{name}_bytes"] = getattr(sizes, name)
    cells["bandwidth_bytes_per_s"] = sizes.total / seconds if seconds > 0 else None
    return cells


@dataclass(frozen=True)
class _Share:
    """A share of summed time: the time of some events of a kind, divided by the time of all events of that kind.

    `total`: describes the divisor, which is the one that NVIDIA's own report on that kind uses. `columns`: there is one
    share for each process and each combination of values of these fields of the events' groups. `field`: the field of
    the groups that shows which events are part of the share. `is_part`: returns True for the values of this field whose
    events are.
    """

    name: str
    event_kind: str
    total: str
    columns: tuple[str, ...]
    field: str
    is_part: Callable[[str], bool]


_ALL_COPIES = "time of all memory operations on the device"
_ALL_CALLS = "time of all CUDA API calls of the process"
_ALL_KERNELS = "time of all kernels on the device"
SHARES = (
    _Share(
        name="host_to_device_copies",
        event_kind="memory",
        total=_ALL_COPIES,
        columns=("device",),
        field="operation",
        is_part=lambda operation: operation == "host_to_device",
    ),
    _Share(
        name="kernel_launches",
        event_kind="api",
        total=_ALL_CALLS,
        columns=(),
        field="name",
        is_part=lambda function: LAUNCH.match(function) is not None,
    ),
    _Share(
        name="synchronizations",
        event_kind="api",
        total=_ALL_CALLS,
        columns=(),
        field="name",
        is_part=lambda function: "Synchronize" in function,
    ),
    _Share(
        name="nccl",
        event_kind="kernels",
        total=_ALL_KERNELS,
        columns=("device",),
        field="class",
        is_part=lambda class_name: class_name == "communication",
    ),
)


def shares(capture: CapturedEvents) -> Rows:
    """Return the rows of all `SHARES` whose events were recorded."""
    rows: Rows = []
    for share in SHARES:
        events = capture.events(share.event_kind)
        if events is not None:
            rows += _share_rows(share, events)
    return rows


def _share_rows(share: _Share, events: Events) -> Rows:
    """Return a row for each process and combination of values of the share's columns, sorted by the `str` of these.

    The ratio is None if the total time is 0.
    """
    part_ns: Counter[Key] = Counter()
    total_ns: Counter[Key] = Counter()
    keys = events.group_fields("process", *share.columns)
    values = events.group_field(share.field)
    # A row of the class backtrace repeats a call that has a row of its own.
    repeats_call = [False] * len(keys)
    if "api" in events.fields:
        repeats_call = [api == "backtrace" for api in events.group_field("api")]
    for code, key in enumerate(keys):
        if code not in events.durations or repeats_call[code]:
            continue
        group_ns = int(events.durations.of([code]).sum(dtype=np.int64))
        total_ns[key] += group_ns
        if share.is_part(values[code]):
            part_ns[key] += group_ns
    rows: Rows = []
    for key in sorted(total_ns, key=str):
        cells: Row = {
            "share": share.name,
            "total_s": part_ns[key] / 1e9,
            "of": share.total,
            "of_s": total_ns[key] / 1e9,
            "ratio": part_ns[key] / total_ns[key] if total_ns[key] else None,
        }
        rows.append(_row(key, share.columns, cells))
    return rows
