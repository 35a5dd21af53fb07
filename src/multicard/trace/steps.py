"""When steps begin and end: on the host, whose ranges mark them, and on a device, which may run far behind the host."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.core.layout import PHASES
from multicard.trace.collect import Events
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import Integers

Owner = tuple[int, int]  # trace, process
Thread = tuple[int, int, int | None]  # trace, process, thread; None where threads were not recorded

STEP = "step"
DEVICE, HOST = "device", "host"  # extents

# Part of a device's activity whose launching calls must be recorded for its steps to be told.
RECORDED = 0.9

Window = tuple[int, int]
ALWAYS: Window = (-(1 << 62), 1 << 62)


class Steps(NamedTuple):
    """Starts and ends of the steps of a process in order of time, in nanoseconds, disjoint.

    `extent` says by whom they are told: the `HOST`, or the `DEVICE`.
    """

    starts: Integers
    ends: Integers
    extent: str = HOST

    @property
    def window(self) -> Window:
        """Start of the first and end of the last."""
        return int(self.starts[0]), int(self.ends[-1])


def on_device(steps: Steps, call: Integers, end: Integers, own: npt.NDArray[np.bool_] | None = None) -> Steps:
    """Steps as a device of the process ran them; those of the host where launches do not tell.

    A step begins when the host has begun it and the device has done all that was launched before; it ends when the
    host has ended it and the device has done all that was launched until then. So where the host begins a step as it
    ends the one before, the device does too. These are the moments that CUDA events would take that the host records as
    it begins and ends the step, if all activity is on one stream (CUDA Runtime API, cudaEventRecord). An event does not
    wait for work on other streams: see `streams_of_steps`.

    Parameters
    ----------
    steps
        Steps of the host.
    call, end
        Of all activity of the device: when its launching call began, or `UNKNOWN`, and when the activity ended.
    own
        Which of it is on the streams of the steps, all by default; of both, launches have to be recorded.
    """
    known = call != UNKNOWN
    if len(call) == 0 or known.mean() < RECORDED:
        return steps
    if own is not None and not own.all():
        return on_device(steps, call[own], end[own])
    if not known.all():
        call, end = call[known], end[known]
    moments = np.column_stack((steps.starts, steps.ends)).ravel()
    passed = np.searchsorted(moments, call, side="right")  # of each launch: how many of the moments were over
    latest = np.full(len(moments) + 1, ALWAYS[0])
    np.maximum.at(latest, passed, end)
    moments = np.maximum(moments, np.maximum.accumulate(latest[:-1]))
    return Steps(moments[::2], moments[1::2], DEVICE)


def streams_of_steps(
    streams: Iterable[int | None], launched: Iterable[int | None], others: bool, threads: Iterable[int | None]
) -> set[int | None] | None:
    """Streams of a device on which its process runs its steps; None where nobody can tell.

    They are those with kernels that the thread launched that marks the steps, such as those of the forward pass and of
    the optimizer; the backward pass uses the same ones. The streams of loaders that work in threads of their own, such
    as DALI, are none of them, and neither are streams with nothing but copies. On a device without such kernels, which
    only other threads use, all streams are: with `DataParallel` replicas run in a thread per device.

    Parameters
    ----------
    streams
        Streams with any activity on the device; None for one that was not recorded.
    launched
        Those with kernels that a thread launched that marks steps.
    others
        Whether other threads launched something on the device.
    threads
        The threads that mark steps; None for one that was not recorded.
    """
    found = set(streams)
    if found == {None}:
        return None if others else found
    if len(found) > 1 and None in {*found, *threads}:
        return None
    return found & set(launched) or found


class Marks:
    """Steps and phases that the processes of a capture marked by ranges."""

    def __init__(self, ranges: Events | None) -> None:
        """`ranges` carry process, name, thread, start and duration."""
        self._ranges = ranges

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Steps and phases per process in order of time, with the number of their step.

        A phase belongs to the step that holds its start. A step inside another is a range of that step's, no step.
        """
        rows: list[dict[str, Any]] = []
        if self._ranges is None:
            return rows
        owners = self._ranges.values("process", "name")
        threads = [thread for _, thread in self._ranges.values("thread")]
        known = self._ranges.mask(name in (STEP, *PHASES) for _, _, name in owners)
        columns = (self._ranges.code, *(self._ranges.arrays[name] for name in ("start", "duration")))
        found = sorted(
            (owners[code][:2], start, -duration, owners[code][2], code)
            for code, start, duration in zip(*(column[known].tolist() for column in columns), strict=True)
        )
        owner, number, end = None, 0, 0
        for (trace, process), start, negative, name, code in found:
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
                    "thread": threads[code],
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
        return {owner: Steps(*np.array(times, np.int64).T) for owner, times in found.items()}

    @cached_property
    def threads(self) -> set[Thread]:
        """The threads that marked the steps."""
        return {(row["trace"], row["process"], row["thread"]) for row in self.rows if row["phase"] == STEP}

    def window(self, trace: int, process: int | None) -> Window:
        """From the first step's start to the last one's end: of the process, else of its trace; else `ALWAYS`."""
        own = None if process is None else self.steps.get((trace, process))
        if own is not None:
            return own.window
        others = [steps.window for (of, _), steps in self.steps.items() if of == trace]
        return (min(first for first, _ in others), max(last for _, last in others)) if others else ALWAYS
