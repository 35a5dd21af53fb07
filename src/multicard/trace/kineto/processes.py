"""Assign events to processes: to one, or to several where somebody merged the traces of ranks into one file.

Kineto writes the process id on what the host did, but the number of the device on what a device did. In a file of one
process that is enough. In a merged file the process of a device's event must be found: by its place in the list, as
most merging programs only append one list to the other; or else by the calls that launched it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.text import first_of, printable
from multicard.trace.kineto.events import (
    API_CATEGORIES,
    DEVICE_CATEGORIES,
    HOST_CATEGORIES,
    TimedEvent,
    category_of,
)
from multicard.trace.kineto.values import Microseconds, Scalar, last_number, whole

# The number in tables of a process that no event of the host states.
UNKNOWN_PROCESS = -1

# A process owns the work of a stream, or of a part of the list, if it launched this share of it at least.
_OWNED_SHARE = 0.9

# The start of the first call of each correlation, by process.
_Calls = Mapping[Scalar, Mapping[int, Microseconds]]
_Divided = dict[Scalar, list[TimedEvent]]
_Stream = tuple[Scalar, ...]


def processes_of(events: Iterable[TimedEvent]) -> list[Scalar]:
    """Return the ids of the processes as they stand in the events of the host, in the order of their first events."""
    pids = dict.fromkeys(event.pid for event in events if category_of(event) in HOST_CATEGORIES)
    return [pid for pid in pids if pid is not None]


def numbered(pids: Sequence[Scalar]) -> dict[Scalar, int]:
    """Return a number for each process id: the number in it, or its position if these are not distinct.

    >>> numbered([4242]), numbered(["[TP00] 70", "[TP01] 71"]), numbered(["rank a", "rank b"])
    ({4242: 4242}, {'[TP00] 70': 70, '[TP01] 71': 71}, {'rank a': 0, 'rank b': 1})
    """
    numbers = [number for number in map(last_number, pids) if number is not None]
    if len(set(numbers)) < len(pids):
        numbers = list(range(len(pids)))
    return dict(zip(pids, numbers, strict=True))


def divided(path: Path, events: list[TimedEvent], pids: Sequence[Scalar]) -> _Divided:
    """Return the events of each of several processes.

    Raises `TraceError` if the owner of some device's events is unclear.
    """
    calls = {pid: starts for pid, starts in _first_calls(events).items() if pid in pids}
    by_process = _by_position(events, pids, calls) or _by_calls(events, pids, calls)
    if by_process is None:
        names = first_of([printable(str(pid), 20) for pid in pids], 8)
        raise TraceError(
            f"{path}: holds the events of {len(pids)} processes ({names}) and does not tell which of them used which "
            "device, expected a file for each rank"
        )
    return by_process


def _first_calls(events: Iterable[TimedEvent]) -> _Calls:
    calls: dict[Scalar, dict[int, Microseconds]] = {}
    for event in events:
        correlation = whole(event.args.correlation)
        if correlation is not None and category_of(event) in API_CATEGORIES:
            starts = calls.setdefault(event.pid, {})
            starts[correlation] = min(event.ts, starts.get(correlation, event.ts))
    return calls


@dataclass
class _Span:
    """Positions of the first and last event of a process on the host."""

    first: int
    last: int


def _by_position(events: list[TimedEvent], pids: Sequence[Scalar], calls: _Calls) -> _Divided | None:
    """Divide a list in which the processes come one after the other; None if they do not."""
    spans: dict[Scalar, _Span] = {}
    has_devices = False
    for position, event in enumerate(events):
        category = category_of(event)
        if category in HOST_CATEGORIES:
            span = spans.setdefault(event.pid, _Span(position, position))
            span.last = position
        has_devices = has_devices or category in DEVICE_CATEGORIES
    order = sorted(pids, key=lambda pid: spans[pid].first)
    # Events of devices before the first event of the host are of the first process.
    begins = [0, *(spans[pid].first for pid in order[1:])]
    ends = [*begins[1:], len(events)]
    by_process: _Divided = {}
    for pid, begin, end in zip(order, begins, ends, strict=True):
        is_mixed_with_next = spans[pid].last >= end
        if is_mixed_with_next:
            return None
        by_process[pid] = events[begin:end]
    if has_devices and not all(_owns_its_part(pid, part, calls) for pid, part in by_process.items()):
        return None
    return by_process


def _owns_its_part(pid: Scalar, part: list[TimedEvent], calls: _Calls) -> bool:
    """True if a process launched most of what ran on devices in its part of the list."""
    launched = {whole(event.args.correlation) for event in part if category_of(event) in DEVICE_CATEGORIES}
    if pid in calls and not launched:
        # The process made calls and ran nothing, so its list was not appended as a whole.
        return False
    recorded = {correlation for correlation in launched if any(correlation in starts for starts in calls.values())}
    owned = recorded & calls.get(pid, {}).keys()
    return len(owned) >= _OWNED_SHARE * len(recorded)


def _by_calls(events: list[TimedEvent], pids: Sequence[Scalar], calls: _Calls) -> _Divided | None:
    """Divide a list by which process launched what ran on each stream; None if that is not clear.

    Processes number their calls alike, so several may have made a call of an event's number. Of their first calls of
    that number, the latest that began before the event counts. Every process that made calls must own a stream.
    """
    owners = _owners_of_streams(events, calls)
    if owners is None or calls.keys() - set(owners.values()):
        return None
    by_process: _Divided = {pid: [] for pid in pids}
    for event in events:
        if category_of(event) in DEVICE_CATEGORIES:
            by_process[owners[_stream(event)]].append(event)
        elif event.pid in by_process:
            by_process[event.pid].append(event)
    return by_process


def _owners_of_streams(events: list[TimedEvent], calls: _Calls) -> dict[_Stream, Scalar] | None:
    """Return the process that launched most of the work of each stream; None if that is unclear for one of them."""
    votes: dict[_Stream, Counter[Scalar]] = {}
    for event in events:
        if category_of(event) in DEVICE_CATEGORIES:
            counts = votes.setdefault(_stream(event), Counter())
            launched_by = _launching_process(event, calls)
            if launched_by is not None:
                counts[launched_by] += 1
    owners: dict[_Stream, Scalar] = {}
    for stream, counts in votes.items():
        if not counts:
            return None
        owner, count = counts.most_common(1)[0]
        if count < _OWNED_SHARE * counts.total():
            return None
        owners[stream] = owner
    return owners


def _launching_process(event: TimedEvent, calls: _Calls) -> Scalar:
    """Return the process whose call of the event's number is the latest before the event; None if there is none."""
    correlation = whole(event.args.correlation)
    if correlation is None:
        return None
    latest: Scalar = None
    latest_start: Microseconds | None = None
    for pid, starts in calls.items():
        start = starts.get(correlation)
        if start is not None and start <= event.ts and (latest_start is None or start > latest_start):
            latest = pid
            latest_start = start
    return latest


def _stream(event: TimedEvent) -> _Stream:
    return event.pid, event.tid, event.args.device, event.args.stream
