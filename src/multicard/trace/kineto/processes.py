"""Assign events to processes: to one, or to several if somebody merged the traces of ranks into one file.

As the `pid` of an event, Kineto writes the process id if the event is of the host, but the number of the device if it
is of a device. In a file of one process that is enough. In a merged file, the process of a device's event must be
found. First its place in the list is tried, because most programs that merge files only append one list to the other.
If that is not clear, the calls that launched the events are compared.
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

# The number of the process in tables if no event of the host states a process id.
UNKNOWN_PROCESS = -1

# A process owns the work on a stream, or in a part of the list, if it launched at least this share of the work whose
# launching call is in the file.
_OWNED_SHARE = 0.9

# By process and correlation, the start of the first call with this correlation, in microseconds.
_Calls = Mapping[Scalar, Mapping[int, Microseconds]]
_Divided = dict[Scalar, list[TimedEvent]]
_Stream = tuple[Scalar, ...]


def processes_of(events: Iterable[TimedEvent]) -> list[Scalar]:
    """Return the process ids that the events of the host state, in the order of their first events."""
    pids = dict.fromkeys(event.pid for event in events if category_of(event) in HOST_CATEGORIES)
    return [pid for pid in pids if pid is not None]


def numbered(pids: Sequence[Scalar]) -> dict[Scalar, int]:
    """Return a number for each process id: the number with which it ends.

    If an id does not end with a number, or two end with the same one, each id gets its position instead.

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
    """Divide a list in which the events of one process follow those of another.

    None if they are mixed, or if a process did not launch the work on devices in its part of the list.
    """
    spans: dict[Scalar, _Span] = {}
    has_devices = False
    for position, event in enumerate(events):
        category = category_of(event)
        if category in HOST_CATEGORIES:
            span = spans.setdefault(event.pid, _Span(position, position))
            span.last = position
        has_devices = has_devices or category in DEVICE_CATEGORIES
    order = sorted(pids, key=lambda pid: spans[pid].first)
    # Events of devices before the first event of the host belong to the first process.
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
    """True if a process launched most of what ran on devices in its part of the list, by `_OWNED_SHARE`.

    Work of which no process's launching call is in the file does not count.
    """
    launched = {whole(event.args.correlation) for event in part if category_of(event) in DEVICE_CATEGORIES}
    if pid in calls and not launched:
        # The process made calls, but its part has no work on a device. So its list was not appended as a whole.
        return False
    recorded = {correlation for correlation in launched if any(correlation in starts for starts in calls.values())}
    owned = recorded & calls.get(pid, {}).keys()
    return len(owned) >= _OWNED_SHARE * len(recorded)


def _by_calls(events: list[TimedEvent], pids: Sequence[Scalar], calls: _Calls) -> _Divided | None:
    """Divide a list by the process that launched the work on each stream.

    None if this process is not clear for one of the streams, or if a process made calls and owns no stream.
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
    """Return the process that launched most of the work on each stream, by `_OWNED_SHARE`.

    None if there is no such process for one of the streams.
    """
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
    """Return the process that launched an event; None if no call before the event has its correlation.

    Every process counts its correlations from the same number, so several processes may have made a call with the
    correlation of the event. Of the first such call of each process, the latest one that began before the event counts.
    """
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
