"""Tables of the events of one process: the groups, and the numbers of each event."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from multicard.trace.kineto.copies import host_memory, operation
from multicard.trace.kineto.document import Event
from multicard.trace.kineto.events import API_CATEGORIES
from multicard.trace.kineto.findings import NO_DEVICE, TOO_LARGE, Findings
from multicard.trace.kineto.values import LEAST, MOST, Scalar, last_number, nanoseconds, whole
from multicard.trace.model import KINDS, MISSING, Integers, shared_name

Key = tuple[Any, ...]


class Table(NamedTuple):
    """Events of a kind: what describes each group, the code of each event's group, and its numbers."""

    groups: list[Key]
    code: Integers
    numbers: dict[str, Integers]


class Process(NamedTuple):
    """A process: its id in tables, and as it stands in the events of the host."""

    number: int
    pid: Scalar


def table(kind: str, events: list[Event], process: Process, findings: Findings) -> Table:
    """Return the table of the events of one kind other than messages."""
    key_of: Callable[[Event], Key] = _host_key if kind in ("ranges", "api") else _device_key
    keys: dict[Key, int] = {}
    code = [keys.setdefault(key_of(event), len(keys)) for event in events]
    start = np.array([nanoseconds(event.ts) for event in events], np.int64)
    duration = np.array([nanoseconds(event.dur) for event in events], np.int64)
    numbers = {"start": start, "end": start + duration, "duration": duration}
    for name in set(KINDS[kind].numbers) - numbers.keys():
        numbers[name] = _numbers([getattr(event.args, name) for event in events], findings)
    groups = [(process.number, *_described(kind, process, *key)) for key in keys]
    codes = np.array(code, np.int32)
    if key_of is _device_key:
        unknown = [
            number for (_, _, device, *_), number in keys.items() if device is not None and whole(device) is None
        ]
        findings[NO_DEVICE] += int(np.isin(codes, unknown).sum())
    return Table(groups, codes, numbers)


def joined(tables: list[Table]) -> Table:
    """Return one table of the events of several processes."""
    if len(tables) == 1:
        return tables[0]
    groups: list[Key] = []
    codes = []
    for own in tables:
        codes.append(own.code + np.int32(len(groups)))
        groups += own.groups
    numbers = {name: np.concatenate([own.numbers[name] for own in tables]) for name in tables[0].numbers}
    return Table(groups, np.concatenate(codes), numbers)


def _host_key(event: Event) -> Key:
    """Return what tells calls or ranges of different groups apart, as the file has it."""
    return event.cat, event.name, event.tid


def _device_key(event: Event) -> Key:
    """Return what tells work on devices of different groups apart, as the file has it.

    Kineto writes the device as the process and the stream as the thread, too; some exporters leave out the others.
    """
    arguments = event.args
    stream = arguments.queue if arguments.stream is None else arguments.stream
    if arguments.device is None:
        return event.cat, event.name, None, stream, event.pid, event.tid
    return event.cat, event.name, arguments.device, stream


def _described(kind: str, process: Process, category: str, name: Scalar, *place: Scalar) -> Key:
    """Return the columns of a group, without its process."""
    text = "" if name is None else str(name)
    if kind == "ranges":
        return None, shared_name(text), whole(*place)
    if kind == "api":
        return API_CATEGORIES[category.lower()], text, whole(*place)
    device, stream, *instead = place
    number = whole(device)
    if instead and instead[0] != process.pid:
        number = last_number(instead[0])
        stream = instead[1] if stream is None else stream
    if kind == "kernels":
        return number, text, last_number(stream)
    return number, operation(category, text), host_memory(text), last_number(stream)


def _numbers(values: Iterable[Scalar], findings: Findings) -> Integers:
    """Return numbers, `MISSING` for those that are none or need more than 64 bits."""
    found = [value if type(value) is int else _or_missing(value) for value in values]
    try:
        return np.array(found, np.int64)
    except OverflowError:
        findings[TOO_LARGE] += sum(not LEAST <= number <= MOST for number in found)
        return np.array([number if LEAST <= number <= MOST else MISSING for number in found], np.int64)


def _or_missing(value: Scalar) -> int:
    number = whole(value)
    return MISSING if number is None else number
