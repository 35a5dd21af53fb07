"""When steps begin and end: on the host, whose ranges mark them, and on a device, which may run far behind the host."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from multicard.core.layout import PHASES
from multicard.trace.collect import Events
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import DEVICE, HOST, Integers, Steps, Trace

Owner = tuple[int, int]  # trace, process

STEP = "step"

# Part of a device's activity whose launching calls must be recorded for its steps to be told.
RECORDED = 0.9

Window = tuple[int, int]
ALWAYS: Window = (-(1 << 62), 1 << 62)


def on_device(steps: Steps, call: Integers, end: Integers) -> Steps:
    """Steps as a device of the process ran them; those of the host where launches do not tell.

    A step begins when the host has begun it and the device has done all that was launched before; it ends when the
    host has ended it and the device has done all that was launched until then. So where the host begins a step as it
    ends the one before, the device does too. These are the moments that CUDA events would take that the host records as
    it begins and ends the step, if all of this activity is on one stream (CUDA Runtime API, cudaEventRecord).

    `steps` are those of the host; `call` and `end` of the activity that steps wait for: when its launching call began,
    or `UNKNOWN`, and when it ended.
    """
    known = call != UNKNOWN
    if len(call) == 0 or known.mean() < RECORDED:
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
        found: list[tuple[Any, ...]] = [
            (owner, start, start - end, STEP, thread)
            for owner, own in self._stated.items()
            for start, end, thread in zip(own.starts.tolist(), own.ends.tolist(), own.threads, strict=True)
        ]
        if self._ranges is not None:
            owners = self._ranges.values("process", "name", "thread")
            names = (STEP, *PHASES) if self._by_range else PHASES
            known = self._ranges.mask(name in names for _, _, name, _ in owners)
            columns = (self._ranges.code, *(self._ranges.arrays[name] for name in ("start", "duration")))
            found += [
                (owners[code][:2], start, -duration, *owners[code][2:])
                for code, start, duration in zip(*(column[known].tolist() for column in columns), strict=True)
            ]
        owner, number, end = None, 0, 0
        for (trace, process), start, negative, name, thread in sorted(found, key=lambda each: each[:4]):
            if owner != (trace, process):
                owner, number, end = (trace, process), 0, start
            if name == STEP:
                if start < end:
                    continue
                number, end = number + 1, start - negative
            rows.append(
                {
                    "trace": trace,
                    "process": process,
                    "phase": name,
                    "step": number if number and start < end else None,
                    "start": start,
                    "duration": -negative,
                    "thread": thread,
                }
            )
        return rows

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
