"""Assign events to processes: to one, or to several where somebody merged the traces of ranks into one file.

Kineto writes the process id on what the host did, but the number of the device on what a device did. In a file of one
process that is enough. In a merged file the process of a device's event must be found: by its place in the list, as
most merging programs only append one list to the other; or else by the calls that launched it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.text import first_of, printable
from multicard.trace.kineto.document import NO_ARGUMENTS, Event
from multicard.trace.kineto.events import API_CATEGORIES, DEVICE_CATEGORIES, HOST_CATEGORIES
from multicard.trace.kineto.values import Scalar, last_number, whole

UNKNOWN_PROCESS = -1

# Smallest share of the events of a device with a known call that one process must have launched.
_OWN = 0.9


def processes_of(events: Iterable[Event]) -> list[Scalar]:
    """Return the ids of the processes as they stand in the events of the host, in the order of their first events."""
    pids = dict.fromkeys(event.pid for event in events if _category(event) in HOST_CATEGORIES)
    return [pid for pid in pids if pid is not None]


def numbered(pids: Sequence[Scalar]) -> dict[Scalar, int]:
    """Return a number for each process id: its own, or its place in the list where these do not tell them apart.

    >>> numbered([4242]), numbered(["[TP00] 70", "[TP01] 71"]), numbered(["rank a", "rank b"])
    ({4242: 4242}, {'[TP00] 70': 70, '[TP01] 71': 71}, {'rank a': 0, 'rank b': 1})
    """
    numbers = [last_number(pid) for pid in pids]
    if None in numbers or len(set(numbers)) < len(numbers):
        numbers = list(range(len(pids)))
    return dict(zip(pids, numbers, strict=True))


def divided(path: Path, events: list[Event], pids: Sequence[Scalar]) -> dict[Scalar, list[Event]]:
    """Return the events of each of several processes.

    Raises `TraceError` if it cannot be told whose the events of devices are.
    """
    calls = {pid: own for pid, own in _first_calls(events).items() if pid in pids}
    found = _by_place(events, pids, calls) or _by_calls(events, pids, calls)
    if found is None:
        names = first_of([printable(str(pid), 20) for pid in pids], 8)
        raise TraceError(
            f"{path}: holds the events of {len(pids)} processes ({names}) and does not tell which of them used which "
            "device, expected a file for each rank"
        )
    return found


# The start of the first call of each correlation, by process.
_Calls = dict[Scalar, dict[int, float]]


def _first_calls(events: Iterable[Event]) -> _Calls:
    found: _Calls = {}
    for event in events:
        correlation = _correlation(event)
        if correlation is not None and _category(event) in API_CATEGORIES:
            own = found.setdefault(event.pid, {})
            own[correlation] = min(event.ts, own.get(correlation, event.ts))
    return found


def _by_place(events: list[Event], pids: Sequence[Scalar], calls: _Calls) -> dict[Scalar, list[Event]] | None:
    """Divide a list in which the processes come one after the other; None if they do not."""
    firsts: dict[Scalar, int] = {}
    lasts: dict[Scalar, int] = {}
    for place, event in enumerate(events):
        if _category(event) in HOST_CATEGORIES:
            firsts.setdefault(event.pid, place)
            lasts[event.pid] = place
    order = sorted(pids, key=firsts.__getitem__)
    starts = [0, *(firsts[pid] for pid in order[1:])]
    ends = [*starts[1:], len(events)]
    if any(lasts[pid] >= end for pid, end in zip(order, ends, strict=True)):
        return None
    found = {pid: events[start:end] for pid, start, end in zip(order, starts, ends, strict=True)}
    has_devices = any(_category(event) in DEVICE_CATEGORIES for event in events)
    for pid, own in found.items():
        launched = {_correlation(event) for event in own if _category(event) in DEVICE_CATEGORIES}
        if has_devices and pid in calls and not launched:
            return None  # its list was not appended as a whole
        known = {number for number in launched if any(number in of for of in calls.values())}
        if len(known & calls.get(pid, {}).keys()) < _OWN * len(known):
            return None
    return found


def _by_calls(events: list[Event], pids: Sequence[Scalar], calls: _Calls) -> dict[Scalar, list[Event]] | None:
    """Divide a list by which process launched what ran on each stream; None if that is not clear.

    Processes number their calls alike. So each process stands with its first call of an event's number; of those that
    began before the event the latest counts. Every process that made calls must be found to have a stream.
    """
    votes: dict[tuple[Scalar, ...], Counter[Scalar]] = {}
    for event in events:
        if _category(event) in DEVICE_CATEGORIES:
            number = _correlation(event)
            before = {pid: own[number] for pid, own in calls.items() if number in own and own[number] <= event.ts}
            counts = votes.setdefault(_stream(event), Counter())
            if before:
                counts[max(before, key=before.__getitem__)] += 1
    owners: dict[tuple[Scalar, ...], Scalar] = {}
    for stream, counts in votes.items():
        owner, count = counts.most_common(1)[0] if counts else (None, 0)
        if count == 0 or count < _OWN * counts.total():
            return None
        owners[stream] = owner
    if calls.keys() - set(owners.values()):
        return None
    found: dict[Scalar, list[Event]] = {pid: [] for pid in pids}
    for event in events:
        if _category(event) in DEVICE_CATEGORIES:
            found[owners[_stream(event)]].append(event)
        elif event.pid in found:
            found[event.pid].append(event)
    return found


def _category(event: Event) -> str:
    return (event.cat or "").lower()


def _correlation(event: Event) -> int | None:
    return whole(event.args.correlation) if event.args else None


def _stream(event: Event) -> tuple[Scalar, ...]:
    arguments = event.args or NO_ARGUMENTS
    return event.pid, event.tid, arguments.device, arguments.stream
