"""When steps begin and end: on the host, whose ranges mark them, and on a device, which may run far behind the host."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.core.layout import PHASES
from multicard.trace.collect import Events
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import DEVICE, HOST, Integers, Steps, Trace

Owner = tuple[int, int]  # trace, process

STEP = "step"

# Part of a device's activity whose launching calls must be recorded for its steps to be told.
RECORDED = 0.9

# By which a range may seem to begin before the one that it touches ends: times since 1970 in microseconds are rounded
# to a quarter of one.
ROUNDING_NS = 1000

# Ranges around the first steps of a program, or around each of them, which it does not measure itself.
_WARM_UP = re.compile(
    r"(?:train(?:ing)?[ _-]?)?warm[ _-]?up(?:[ _-]?(?:step|iteration|iter|batch|phase|loop|run)s?)?[ _#:-]*\d*",
    re.IGNORECASE,
)

Window = tuple[int, int]
ALWAYS: Window = (-(1 << 62), 1 << 62)
LONG_AGO = ALWAYS[0]  # when what was launched before the first step is said to have been, if its call was not recorded


def mark_of(name: str) -> str | None:
    """Return what a range of this name marks, whatever its capitals: `STEP` or one of `PHASES`; None if neither.

    >>> mark_of("Forward"), mark_of("step"), mark_of("forward_hook")
    ('forward', 'step', None)
    """
    lower = name.lower()
    return lower if lower in (STEP, *PHASES) else None


def is_warm_up(name: str) -> bool:
    """Return True if a range of this name is around steps that warm up.

    >>> [is_warm_up(name) for name in ("Warm-up Step 2", "warmup", "Training Warm-Up", "lr_warmup_scheduler")]
    [True, True, True, False]
    """
    return _WARM_UP.fullmatch(name) is not None


def warms_up(start: int, end: int, warm_up: Sequence[Window]) -> bool:
    """Return True if a step warms up: if its middle lies in one of the ranges `warm_up`.

    The middle, since steps that reach from one update of the weights to the next begin as the one before ends.
    """
    middle = (start + end) // 2
    return any(first <= middle < last for first, last in warm_up)


def launched_before(first_step: Window, call: Integers, start: Integers, stream: Integers) -> npt.NDArray[np.bool_]:
    """Return which activities of a device were launched before the first step, though their calls were not recorded.

    First, those that began before that step. Second, what the device still had to do as calls began to be recorded,
    which may take it longer than the step takes the host. A stream works in the order of the calls, so all of it comes
    before the stream's first activity whose call was recorded. That there is such work shows where some of it begins
    after the first recorded call. If this call comes after the first step, calls of steps are missing, and nothing can
    be told from that.

    `first_step`: its start and end on the host. `call`, `start`, `stream`: of each activity when its launching call
    began, or `UNKNOWN`; when it began itself; and the number of its stream, counted from 0.
    """
    unknown = call == UNKNOWN
    early = unknown & (start < first_step[0])
    if early.all() or unknown.all():
        return early
    first_call = call.min()
    if first_call >= first_step[1]:
        return early
    never = np.iinfo(np.int64).max
    firsts = np.full(int(stream.max()) + 1, never)  # of each stream the first activity whose call was recorded
    np.minimum.at(firsts, stream[~unknown], start[~unknown])
    firsts[firsts == never] = start[~unknown].min()
    before = unknown & (start < firsts[stream])
    lags = np.zeros(len(firsts), bool)
    lags[stream[before & (start >= first_call)]] = True
    return early | (before & lags[stream])


def on_device(steps: Steps, call: Integers, end: Integers) -> Steps:
    """Steps as a device of the process ran them; those of the host where launches do not tell.

    A step begins when the host has begun it and the device has done all that was launched before; it ends when the
    host has ended it and the device has done all that was launched until then. So where the host begins a step as it
    ends the one before, the device does too. These are the moments that CUDA events would take that the host records as
    it begins and ends the step, if all of this activity is on one stream (CUDA Runtime API, cudaEventRecord).

    `steps` are those of the host; `call` and `end` of the activity that steps wait for: when its launching call began,
    or `UNKNOWN`, and when it ended. `LONG_AGO` is the call of what was launched before the first step: that
    step waits for it, and it does not count where launches must be recorded.
    """
    known = call != UNKNOWN
    in_capture = call != LONG_AGO
    if not in_capture.any() or known[in_capture].mean() < RECORDED:
        return steps
    if not known.all():
        call, end = call[known], end[known]
    moments = np.column_stack((steps.starts, steps.ends)).ravel()
    passed = np.searchsorted(moments, call, side="right")  # of each launch: how many of the moments were over
    latest = np.full(len(moments) + 1, ALWAYS[0])
    np.maximum.at(latest, passed, end)
    moments = np.maximum(moments, np.maximum.accumulate(latest[:-1]))
    return Steps(moments[::2], moments[1::2], DEVICE)


class Marks:
    """Steps and phases that the processes of a capture marked by ranges."""

    def __init__(self, ranges: Events | None, traces: Sequence[Trace] = ()) -> None:
        """`ranges` carry process, name, thread, start and duration; steps of `traces` take their place."""
        self._ranges = ranges
        self._by_range = all(trace.steps is None for trace in traces)
        stated = ((i, *each) for i, trace in enumerate(traces) for each in (trace.steps or {}).items())
        self._stated = {(i, process): own for i, process, own in stated}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Steps and phases per process in order of time, with the number of their step.

        A phase belongs to the step that holds its start. A step inside another is a range of that step's, no step.
        """
        rows: list[dict[str, Any]] = []
        owner, number, end = None, 0, 0
        for (trace, process), start, negative, name, thread in sorted(self._marked, key=lambda each: each[:4]):
            if owner != (trace, process):
                owner, number, end = (trace, process), 0, start
            last = start - negative
            if name == STEP:
                touches = start + ROUNDING_NS >= end and last > end
                if start < end and not touches:
                    continue
                start = max(start, end)
                number, end = number + 1, last
            rows.append(
                {
                    "trace": trace,
                    "process": process,
                    "phase": name,
                    "step": number if number and start < end else None,
                    "start": start,
                    "duration": last - start,
                    "thread": thread,
                }
            )
        return rows

    @property
    def _marked(self) -> list[tuple[Any, ...]]:
        """Owner, start, negative duration, name and thread of every step that does not warm up, and of every phase."""
        found: list[tuple[Any, ...]] = [
            (owner, start, start - end, STEP, thread)
            for owner, own in self._stated.items()
            for start, end, thread in zip(own.starts.tolist(), own.ends.tolist(), own.threads, strict=True)
        ]
        if self._ranges is None:
            return found
        groups = self._ranges.values("process", "name", "thread")
        marks = [mark_of(name) for _, _, name, _ in groups]
        warm_up = self._warm_up(groups)
        columns = (self._ranges.code, *(self._ranges.arrays[name] for name in ("start", "duration")))
        known = self._ranges.mask(mark in PHASES or (mark == STEP and self._by_range) for mark in marks)
        for code, start, duration in zip(*(column[known].tolist() for column in columns), strict=True):
            trace, process, _, thread = groups[code]
            around = warm_up.get((trace, process), ())
            if marks[code] == STEP and warms_up(start, start + duration, around):
                continue
            found.append(((trace, process), start, -duration, marks[code], thread))
        return found

    def _warm_up(self, groups: Sequence[tuple[Any, ...]]) -> dict[Owner, list[Window]]:
        """Start and end of the ranges of warm-up, by trace and process."""
        found: dict[Owner, list[Window]] = {}
        known = self._ranges.mask(is_warm_up(name) for _, _, name, _ in groups)
        columns = (self._ranges.code, *(self._ranges.arrays[name] for name in ("start", "duration")))
        for code, start, duration in zip(*(column[known].tolist() for column in columns), strict=True):
            found.setdefault(groups[code][:2], []).append((start, start + duration))
        return found

    @cached_property
    def steps(self) -> dict[Owner, Steps]:
        """Steps of the host, by trace and process."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row in self.rows:
            if row["phase"] == STEP:
                times = (row["start"], row["start"] + row["duration"])
                found.setdefault((row["trace"], row["process"]), []).append(times)
        return {owner: Steps(*np.array(times, np.int64).T, HOST) for owner, times in found.items()}

    @cached_property
    def threads(self) -> set[tuple[Any, ...]]:
        """Trace, process and number of the threads that marked the steps."""
        return {(row["trace"], row["process"], row["thread"]) for row in self.rows if row["phase"] == STEP}

    def window(self, trace: int, process: int | None) -> Window:
        """From the first step's start to the last one's end: of the process, else of its trace; else `ALWAYS`."""
        own = None if process is None else self.steps.get((trace, process))
        if own is not None:
            return own.window
        others = [steps.window for (of, _), steps in self.steps.items() if of == trace]
        return (min(first for first, _ in others), max(last for _, last in others)) if others else ALWAYS
