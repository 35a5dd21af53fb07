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

# The categories of the host's calls that start work on a device, with the column `api` of each. Kineto gives calls of
# CUDA and of HIP the same categories. The others are those of Intel's XPU, of Meta's MTIA, and of devices that third
# parties added to PyTorch (libkineto/include/ActivityType.h).
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
# Until PyTorch 1.10, categories began with capital letters, and ranges of the program had the category of operators. So
# all categories are compared in small letters, and `OPERATORS` is that old category.
OPERATORS = "operator"
HOST_CATEGORIES = {"user_annotation", "cpu_op", OPERATORS, *API_CATEGORIES}
DEVICE_CATEGORIES = {
    "kernel": "kernels",
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), "memory"),
}
_KINDS = {"user_annotation": "ranges", OPERATORS: "ranges", **dict.fromkeys(API_CATEGORIES, "api"), **DEVICE_CATEGORIES}
# Beginnings of the names of ranges that PyTorch itself marks by record_function: steps, loading data, optimizers,
# parallel training.
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
    """Return the category of an event in small letters; "" if it has none."""
    return (event.cat or "").lower()


def by_kind(events: Sequence[AnyEvent], findings: Findings) -> dict[str, list[TimedEvent]]:
    """Return the events of each kind that tables are made of, in the order of the file, with times that are numbers.

    In some files, the begin and the end of an event are two events. They become one complete event: this changes
    `events`.
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
    """Return the events that have a start, with times that are numbers. The events themselves are changed.

    A duration that is not a number becomes 0. An event without arguments gets `NO_ARGUMENTS`.
    """
    for event in events:
        if event.args is None:
            event.args = NO_ARGUMENTS
    if _have_numbers(events):
        return events
    return [event for event in events if _make_timed(event, findings)]


def _have_numbers(events: Sequence[AnyEvent]) -> TypeGuard[list[TimedEvent]]:
    """True if the times of all events are already numbers, and no text or null, as in nearly all files."""
    # Filling sets by `map` is the fastest way to look at millions of events.
    start_types = set(map(type, [event.ts for event in events]))
    duration_types = set(map(type, [event.dur for event in events]))
    return start_types | duration_types <= {int, float}


def _make_timed(event: AnyEvent, findings: Findings) -> TypeGuard[TimedEvent]:
    """Turn the times of an event into numbers; a duration that is not a number becomes 0.

    False, and nothing is changed, if its start is not a number.
    """
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
    """True if an event is a range and not an operator. Old versions recorded both in the category of operators."""
    return category_of(event) != OPERATORS or bool(_RANGE_OF_PYTORCH.match(str(event.name)))


def _pair(events: Sequence[AnyEvent], findings: Findings) -> None:
    """Turn each begin that has an end into a complete event. A begin without an end gets no phase, so it is skipped.

    An end belongs to the latest begin before it on the same thread that has no end yet (Chrome's "Trace Event Format",
    duration events).
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
