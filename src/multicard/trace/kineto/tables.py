"""Tables of the events of one process: the groups, and the numbers of each event."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.trace.kineto.copies import host_memory, name_from_kinds, operation
from multicard.trace.kineto.events import API_CATEGORIES, TimedEvent
from multicard.trace.kineto.findings import NO_DEVICE, TOO_LARGE, Findings
from multicard.trace.kineto.values import LEAST, MOST, Scalar, last_number, nanoseconds, whole
from multicard.trace.model import KINDS, MISSING, Integers, shared_name

# The fields that describe a group of events: either as the file has them, or as the columns of the kind in `KINDS`.
Key = tuple[Any, ...]


@dataclass(frozen=True)
class EventTable:
    """Events of one kind.

    `groups`: the columns of each group, as `KINDS` lists them. `codes`: for each event the position of its group.
    `numbers`: the numbers of each event by name, times in nanoseconds.
    """

    groups: list[Key]
    codes: Integers
    numbers: dict[str, Integers]


@dataclass(frozen=True)
class Process:
    """A process: its number in tables, and its id as the events of the host state it."""

    number: int
    pid: Scalar


def event_table(kind: str, events: list[TimedEvent], process: Process, findings: Findings) -> EventTable:
    """Return the table of the events of one kind other than messages."""
    is_of_host = kind in ("ranges", "api")
    key_of = _host_key if is_of_host else _device_key
    describe: Callable[[str, Process, Key], Key] = _host_group if is_of_host else _device_group
    # Describing a group takes long, so events are grouped by their fields in the file first.
    code_of_key: dict[Key, int] = {}
    code_of_event = [code_of_key.setdefault(key_of(event), len(code_of_key)) for event in events]
    codes = np.array(code_of_event, np.int32)
    numbers = _numbers(kind, events, findings)
    if not is_of_host:
        findings[NO_DEVICE] += _count_unknown_devices(code_of_key, codes)
    return EventTable(
        groups=[describe(kind, process, key) for key in code_of_key],
        codes=codes,
        numbers=numbers,
    )


def _numbers(kind: str, events: list[TimedEvent], findings: Findings) -> dict[str, Integers]:
    """Return the numbers of events of a kind, by name."""
    start = np.array([nanoseconds(event.ts) for event in events], np.int64)
    duration = np.array([nanoseconds(event.dur) for event in events], np.int64)
    numbers = {"start": start, "end": start + duration, "duration": duration}
    # The other numbers have the names of the arguments that hold them.
    for name in set(KINDS[kind].numbers) - numbers.keys():
        values = [getattr(event.args, name) for event in events]
        numbers[name] = _integers(values, findings)
    return numbers


def joined(tables: Sequence[EventTable]) -> EventTable:
    """Return one table of the events of several processes."""
    if len(tables) == 1:
        return tables[0]
    groups: list[Key] = []
    codes: list[Integers] = []
    for table in tables:
        # The groups of this table follow the groups of all tables before it.
        codes.append(table.codes + np.int32(len(groups)))
        groups += table.groups
    numbers: dict[str, Integers] = {}
    for name in tables[0].numbers:
        numbers[name] = np.concatenate([table.numbers[name] for table in tables])
    return EventTable(groups, np.concatenate(codes), numbers)


def _host_key(event: TimedEvent) -> Key:
    """Return the fields of a call or range that decide its group, as the file has them."""
    return event.cat, event.name, event.tid


def _device_key(event: TimedEvent) -> Key:
    """Return the fields of work on a device that decide its group, as the file has them.

    Kineto writes the device into the arguments and into `pid`, and the stream into the arguments and into `tid`. Some
    exporters write them into `pid` and `tid` only. So these two are added if the arguments have no device.

    Since PyTorch 2.14, the kernels of a CUDA graph can be shown on lanes (in 2.15 by `graph_lanes` of
    export_chrome_trace). Then `stream` is the lane, and `original_stream` the stream on which a kernel ran.
    """
    arguments = event.args
    stream = arguments.stream
    if arguments.original_stream is not None:
        stream = arguments.original_stream
    elif stream is None:
        stream = arguments.queue
    name = event.name
    if arguments.copy_kind is not None:
        name = name_from_kinds(arguments.copy_kind, arguments.source_kind, arguments.target_kind)
    if arguments.device is None:
        return event.cat, name, None, stream, event.pid, event.tid
    return event.cat, name, arguments.device, stream


def _host_group(kind: str, process: Process, key: Key) -> Key:
    """Return the columns of a group of calls or ranges, from its `_host_key`."""
    category, name, thread = key
    text = _text(name)
    if kind == "ranges":
        return process.number, None, shared_name(text), whole(thread)
    return process.number, API_CATEGORIES[category.lower()], text, whole(thread)


def _device_group(kind: str, process: Process, key: Key) -> Key:
    """Return the columns of a group of kernels or memory operations, from its `_device_key`."""
    category, name, stated_device, stated_stream, *pid_and_tid = key
    device = whole(stated_device)
    stream = stated_stream
    # If the arguments have no device, `pid` is the device, unless it is the id of the process on the host.
    if pid_and_tid and pid_and_tid[0] != process.pid:
        pid, tid = pid_and_tid
        device = last_number(pid)
        stream = tid if stated_stream is None else stated_stream
    text = _text(name)
    if kind == "kernels":
        return process.number, device, text, last_number(stream)
    return process.number, device, operation(category, text), host_memory(text), last_number(stream)


def _text(name: Scalar) -> str:
    return "" if name is None else str(name)


def _count_unknown_devices(code_of_key: dict[Key, int], codes: Integers) -> int:
    """Return the number of events whose arguments have a device that is no whole number of 64 bits."""
    unknown = []
    for key, code in code_of_key.items():
        _, _, stated_device, *_ = key
        if stated_device is not None and whole(stated_device) is None:
            unknown.append(code)
    return int(np.isin(codes, unknown).sum())


def _integers(values: Iterable[Scalar], findings: Findings) -> Integers:
    """Return values as 64-bit integers, `MISSING` for those that are no integers or need more bits."""
    # Almost all values are integers already, which `_or_missing` would only return.
    integers = [value if type(value) is int else _or_missing(value) for value in values]
    try:
        return np.array(integers, np.int64)
    except OverflowError:
        fitting = [number if LEAST <= number <= MOST else None for number in integers]
        findings[TOO_LARGE] += fitting.count(None)
        return np.array([MISSING if number is None else number for number in fitting], np.int64)


def _or_missing(value: Scalar) -> int:
    number = whole(value)
    return MISSING if number is None else number
