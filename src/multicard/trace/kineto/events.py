"""The events of a trace by kind, each with a start and a duration."""

import re

from multicard.trace.kineto.document import NO_ARGUMENTS, Event
from multicard.trace.kineto.findings import (
    NO_DURATIONS,
    NO_TIMES,
    PAIRS,
    TEXT_TIMES,
    UNPAIRED,
    Findings,
)
from multicard.trace.kineto.values import microseconds

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


def by_kind(events: list[Event], findings: Findings) -> dict[str, list[Event]]:
    """Return the events of each kind that tables are made of, in their order, with times that are numbers."""
    found: dict[str, list[Event]] = {"ranges": [], "api": [], "kernels": [], "memory": []}
    lists: dict[str | None, list[Event] | None] = {None: None}
    has_halves = False
    # All events of a trace pass here, so this loop does no more than it must.
    for event in events:
        if event.ph == "X":
            category = event.cat
            if category not in lists:
                lists[category] = found.get(_KINDS.get(category.lower(), ""))
            own = lists[category]
            if own is not None:
                own.append(event)
        elif event.ph == "B":
            has_halves = True
    if has_halves:
        _pair(events, findings)
        return by_kind(events, findings)
    if any(category and category.lower() == OPERATORS for category in lists):
        found["ranges"] = [event for event in found["ranges"] if _is_range(event)]
    return {kind: _sound(own, findings) for kind, own in found.items()}


def with_times(events: list[Event], findings: Findings) -> list[Event]:
    """Return the events that have a start, and make numbers of their times."""
    types = set(map(type, [event.ts for event in events])) | set(map(type, [event.dur for event in events]))
    if types <= {int, float}:
        return events
    return [event for event in events if _has_times(event, findings)]


def _sound(events: list[Event], findings: Findings) -> list[Event]:
    """Return the events that have a start, with arguments and with times that are numbers."""
    for event in events:
        if event.args is None:
            event.args = NO_ARGUMENTS
    return with_times(events, findings)


def _is_range(event: Event) -> bool:
    return event.cat.lower() != OPERATORS or bool(_RANGE_OF_PYTORCH.match(str(event.name)))


def _pair(events: list[Event], findings: Findings) -> None:
    """Make one complete event of each begin and end, in the place of the begin.

    An end belongs to the last begin before it on its thread (Chrome's "Trace Event Format", duration events).
    """
    halves = [event for event in events if event.ph in ("B", "E")]
    opened: dict[tuple[object, object], list[Event]] = {}
    pairs = unpaired = 0
    for event in sorted(with_times(halves, findings), key=lambda event: event.ts):
        stack = opened.setdefault((event.pid, event.tid), [])
        if event.ph == "B":
            stack.append(event)
        elif stack:
            begin = stack.pop()
            begin.ph = "X"
            begin.dur = event.ts - begin.ts
            pairs += 1
        else:
            unpaired += 1
    for event in halves:
        if event.ph == "B":
            event.ph = None
    unpaired += sum(map(len, opened.values()))
    findings.update({PAIRS: pairs, UNPAIRED: unpaired})


def _has_times(event: Event, findings: Findings) -> bool:
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
    event.ts, event.dur = start, duration
    return True
