"""The events of a trace by kind, each with a start and a duration."""

import re
from collections.abc import Sequence
from typing import Protocol, TypeGuard

from multicard.trace.kineto.document import NO_ARGUMENTS, Arguments, Event
from multicard.trace.kineto.findings import (
    NO_DURATIONS,
    NO_TIMES,
    PAIRS,
    TEXT_TIMES,
    UNPAIRED,
    Findings,
)
from multicard.trace.kineto.values import Microseconds, Scalar, elapsed, microseconds

# Calls of the host that start work on a device, by category: of CUDA and HIP, which Kineto gives the same names, of
# Intel's XPU, of Meta's MTIA and of devices that others added to PyTorch (libkineto/include/ActivityType.h).
API_CATEGORIES = {
    "cuda_runtime": "runtime",
    "cuda_driver": "driver",
    "runtime": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "driver",
    "mtia_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "driver",
}
# Until PyTorch 1.10 these began with capital letters, and ranges of the program were among the operators.
OPERATORS = "operator"
HOST_CATEGORIES = {"user_annotation", "cpu_op", OPERATORS, *API_CATEGORIES}
DEVICE_CATEGORIES = {
    "kernel": "kernels",
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), "memory"),
}
_KINDS = {"user_annotation": "ranges", OPERATORS: "ranges", **dict.fromkeys(API_CATEGORIES, "api"), **DEVICE_CATEGORIES}
# Ranges that PyTorch itself marks by record_function: steps, loading data, optimizers, parallel training.
_RANGE_OF_PYTORCH = re.compile(r"ProfilerStep|enumerate\(DataLoader\)|Optimizer\.|\w*DataParallel\.forward")


class TimedEvent(Protocol):
    """An event whose times are numbers, and which has arguments: an `Event` that went through `with_times`."""

    ph: str | None
    cat: str | None
    name: Scalar
    pid: Scalar
    tid: Scalar
    ts: Microseconds
    dur: Microseconds
    args: Arguments


AnyEvent = Event | TimedEvent


def category_of(event: AnyEvent) -> str:
    """Return the category of an event in small letters, "" if it has none."""
    return (event.cat or "").lower()


def by_kind(events: Sequence[AnyEvent], findings: Findings) -> dict[str, list[TimedEvent]]:
    """Return the events of each kind that tables are made of, in their order, with times that are numbers.

    A begin and an end, which are events of their own in some files, become one event: `events` are changed by that.
    """
    kinds: dict[str, list[AnyEvent]] = {"ranges": [], "api": [], "kernels": [], "memory": []}
    # The list for each category, as the file spells it; None where no table is made of its events.
    lists: dict[str | None, list[AnyEvent] | None] = {}
    has_halves = False
    # All events of a trace pass through this loop, so it does no more than it must.
    for event in events:
        if event.ph == "X":
            category = event.cat
            if category not in lists:
                event_kind = _KINDS.get(category_of(event))
                lists[category] = kinds[event_kind] if event_kind else None
            events_of_kind = lists[category]
            if events_of_kind is not None:
                events_of_kind.append(event)
        elif event.ph == "B":
            has_halves = True
    if has_halves:
        _pair(events, findings)
        return by_kind(events, findings)
    if any(category and category.lower() == OPERATORS for category in lists):
        kinds["ranges"] = [event for event in kinds["ranges"] if _is_range(event)]
    return {event_kind: with_times(events_of_kind, findings) for event_kind, events_of_kind in kinds.items()}


def with_times(events: Sequence[AnyEvent], findings: Findings) -> list[TimedEvent]:
    """Return the events that have a start; make numbers of their times, and give arguments to those without."""
    for event in events:
        if event.args is None:
            event.args = NO_ARGUMENTS
    if _have_numbers(events):
        return events
    return [event for event in events if _make_timed(event, findings)]


def _have_numbers(events: Sequence[AnyEvent]) -> TypeGuard[list[TimedEvent]]:
    """True if the times of all events are binary numbers already, as in nearly all files."""
    # Sets that `map` fills are the fastest way through millions of events.
    start_types = set(map(type, [event.ts for event in events]))
    duration_types = set(map(type, [event.dur for event in events]))
    return start_types | duration_types <= {int, float}


def _make_timed(event: AnyEvent, findings: Findings) -> TypeGuard[TimedEvent]:
    """Make numbers of the times of an event; False if its start is none."""
    start = microseconds(event.ts)
    if start is None:
        findings[NO_TIMES] += 1
        return False
    duration = microseconds(event.dur)
    if duration is None:
        findings[NO_DURATIONS] += 1
        duration = 0
    findings[TEXT_TIMES] += isinstance(event.ts, str) + isinstance(event.dur, str)
    event.ts = start
    event.dur = duration
    return True


def _is_range(event: AnyEvent) -> bool:
    """True for a range of the program, which old versions recorded among operators."""
    return category_of(event) != OPERATORS or bool(_RANGE_OF_PYTORCH.match(str(event.name)))


def _pair(events: Sequence[AnyEvent], findings: Findings) -> None:
    """Make one complete event of each begin and end, where the begin stands in the list.

    An end belongs to the last begin before it on its thread (Chrome's "Trace Event Format", duration events).
    """
    halves = [event for event in events if event.ph in ("B", "E")]
    open_begins: dict[tuple[Scalar, Scalar], list[TimedEvent]] = {}
    pairs = 0
    unpaired = 0
    for event in sorted(with_times(halves, findings), key=lambda half: half.ts):
        begins = open_begins.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            begins.append(event)
        elif begins:
            begin = begins.pop()
            begin.ph = "X"
            begin.dur = elapsed(begin.ts, event.ts)
            pairs += 1
        else:
            unpaired += 1
    for half in halves:
        if half.ph == "B":
            half.ph = None
    unpaired += sum(map(len, open_begins.values()))
    findings.update({PAIRS: pairs, UNPAIRED: unpaired})
