"""When steps begin and end: on the host, whose ranges mark them, and on a device, which may run far behind the host."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from multicard.core.layout import PHASES
from multicard.trace.events import Events, Owner
from multicard.trace.launches import UNKNOWN
from multicard.trace.model import DEVICE, HOST, Integers, Steps, Trace

STEP = "step"

# The steps of a device are computed from launching calls only if at least this share of the calls was recorded.
LEAST_RECORDED_SHARE = 0.9

# A range may seem to begin up to this many nanoseconds before the range that it follows ends. The reason is rounding:
# microseconds since 1970, stored as floats, are multiples of a quarter.
ROUNDING_NS = 1000

# Names of ranges around steps that warm up, which the program itself does not measure: around all of them or each one.
_WARM_UP = re.compile(
    r"(?:train(?:ing)?[ _-]?)?warm[ _-]?up(?:[ _-]?(?:step|iteration|iter|batch|phase|loop|run)s?)?[ _#:-]*\d*",
    re.IGNORECASE,
)

# Start and end in nanoseconds, the end not included.
Window = tuple[int, int]
ALWAYS: Window = (-(1 << 62), 1 << 62)
# Stands in for the start of an unrecorded call that launched something before the first step.
LONG_AGO = ALWAYS[0]


def mark_of(name: str) -> str | None:
    """Return what a range of this name marks: `STEP`, one of `PHASES`, or None. Upper and lower case are the same.

    >>> mark_of("Forward"), mark_of("step"), mark_of("forward_hook")
    ('forward', 'step', None)
    """
    lower = name.lower()
    return lower if lower in (STEP, *PHASES) else None


def is_warm_up(name: str) -> bool:
    """Return True if a range of this name is around one or more steps that warm up.

    >>> [is_warm_up(name) for name in ("Warm-up Step 2", "warmup", "Training Warm-Up", "lr_warmup_scheduler")]
    [True, True, True, False]
    """
    return _WARM_UP.fullmatch(name) is not None


def warms_up(start: int, end: int, warm_up: Sequence[Window]) -> bool:
    """Return True if a step warms up: if its middle lies in one of the windows `warm_up`.

    The middle is compared and not the start, because steps may be found that reach from one update of the weights to
    the next. Such a step begins as the step before it ends, so the first step after the warm-up may begin inside
    the warm-up.
    """
    middle = (start + end) // 2
    return any(first <= middle < last for first, last in warm_up)


def launched_before(first_step: Window, call: Integers, start: Integers, stream: Integers) -> npt.NDArray[np.bool_]:
    """Return True for each activity that was launched before the first step by a call that was not recorded.

    An activity whose call was not recorded was launched before the first step in two cases:

    1. The activity began on the device before the first step began on the host.
    2. The activity was still queued on its stream when the recording of calls began. A stream works in the order of the
       calls, so the activity began before the first activity of the stream whose call was recorded. This is concluded
       only for a stream that lags behind the host: if one such activity began after the first recorded call of the
       device. The queued work may take the device longer than the first step takes the host.

    If the first recorded call comes after the first step, calls of that step are missing. Then only case 1 applies,
    because an activity of case 2 may belong to a step.

    `first_step`: its start and end on the host. `call`: for each activity, when its launching call began, or `UNKNOWN`.
    `start`: when the activity itself began. `stream`: the number of its stream, counted from 0.

    In the example the first step lasts from 10 to 20. Of four activities on one stream, only the call of the last one
    was recorded; that call began at 12. The activity at 5 began before the first step. The activities at 15 and 30
    began before the last activity and after 12, so they were queued when the recording began:

    >>> call = np.array([UNKNOWN, UNKNOWN, UNKNOWN, 12])
    >>> start = np.array([5, 15, 30, 40])
    >>> launched_before((10, 20), call, start, stream=np.array([0, 0, 0, 0])).tolist()
    [True, True, True, False]
    """
    step_start, step_end = first_step
    is_unknown = call == UNKNOWN
    is_early = is_unknown & (start < step_start)
    if is_early.all() or is_unknown.all():
        return is_early
    # `UNKNOWN` is above all times, so the least value is the first call that was recorded.
    first_call = call.min()
    if first_call >= step_end:
        return is_early

    # For each stream the start of its first activity whose call was recorded. A stream without such an activity gets
    # the start of the first such activity of the device.
    recorded_starts = start[~is_unknown]
    stream_count = int(stream.max()) + 1
    never = np.iinfo(np.int64).max
    first_recorded = np.full(stream_count, never)
    np.minimum.at(first_recorded, stream[~is_unknown], recorded_starts)
    first_recorded[first_recorded == never] = recorded_starts.min()

    is_before_recorded = is_unknown & (start < first_recorded[stream])
    # A stream lags if such work of it began after the first call had been recorded.
    shows_lag = is_before_recorded & (start >= first_call)
    stream_lags = np.zeros(stream_count, bool)
    stream_lags[stream[shows_lag]] = True
    return is_early | (is_before_recorded & stream_lags[stream])


def steps_on_device(steps: Steps, call: Integers, end: Integers) -> Steps:
    """Return the steps as a device of the process ran them; `steps` itself if too few launching calls were recorded.

    On the device a step begins when the host has begun it and the device has done all work that was launched before
    that moment. It ends when the host has ended it and the device has done all work that was launched until then. So if
    the host begins a step at the moment at which it ends the step before, the device does too. CUDA events that the
    host records as it begins and ends the step show these moments, if all of this work is on one stream (CUDA Runtime
    API, cudaEventRecord).

    `steps`: the steps of the host. `call`: for each activity that steps wait for, when its launching call began;
    `UNKNOWN` if the call was not recorded, and `LONG_AGO` if it is known to come before the first step. `end`: when the
    activity ended. The first step begins only after the activities of `LONG_AGO` have ended. These are left out of the
    share of recorded calls, which must be at least `LEAST_RECORDED_SHARE`.

    In the example the host begins a step at 0, launches work at 5 and ends the step at 10. The device has done this
    work at 25:

    >>> host = Steps(np.array([0]), np.array([10]))
    >>> device = steps_on_device(host, call=np.array([5]), end=np.array([25]))
    >>> device.starts.tolist(), device.ends.tolist(), device.extent
    ([0], [25], 'device')
    """
    is_recorded = call != UNKNOWN
    is_in_capture = call != LONG_AGO
    if not is_in_capture.any() or is_recorded[is_in_capture].mean() < LEAST_RECORDED_SHARE:
        return steps
    if not is_recorded.all():
        call = call[is_recorded]
        end = end[is_recorded]
    # Start and end of the first step, start and end of the second, and so on: in the example 0, 10.
    host_moments = np.column_stack((steps.starts, steps.ends)).ravel()
    # The number of the host's moments that had passed at each launch. In the example it is 1 at the launch at 5, so the
    # work delays the moment with the index 1, which is 10.
    moments_passed = np.searchsorted(host_moments, call, side="right")
    latest_end = np.full(len(host_moments) + 1, LONG_AGO)
    np.maximum.at(latest_end, moments_passed, end)
    # What was launched after the host's last moment delays none of them.
    done_by_device = np.maximum.accumulate(latest_end[:-1])
    device_moments = np.maximum(host_moments, done_by_device)
    return Steps(starts=device_moments[::2], ends=device_moments[1::2], extent=DEVICE)


class _Mark(NamedTuple):
    """A step or a phase of a process as it was marked, with the thread that marked it."""

    owner: Owner
    start: int
    end: int
    phase: str
    thread: int | None

    @property
    def order(self) -> tuple[Any, ...]:
        """Order by process and time; of marks that begin together, the outer one comes first."""
        return self.owner, self.start, -self.end, self.phase


class StepOrPhase(NamedTuple):
    """A step or a phase of a process, as `Marks` lists it.

    `phase`: `STEP` or one of `PHASES`. `step`: the number of the step, counted from 1 in each process; a phase belongs
    to the step during which it starts, and `step` is None if there is no such step. `start` and `duration`: nanoseconds
    of the host. `thread`: the thread that marked it; None if it was not recorded.
    """

    trace: int
    process: int
    phase: str
    step: int | None
    start: int
    duration: int
    thread: int | None


class Marks:
    """Steps and phases of the processes of a capture: as ranges mark them, or, for steps, as the traces hold them."""

    def __init__(self, ranges: Events | None, traces: Sequence[Trace] = ()) -> None:
        """Take the ranges, with process, name, thread, start and duration.

        If any of `traces` has `steps`, only the steps of traces count, and no range marks a step.
        """
        self._ranges = ranges
        self._found: dict[Owner, Steps] = {}
        self._ranges_mark_steps = True
        for trace_number, trace in enumerate(traces):
            if trace.steps is not None:
                self._ranges_mark_steps = False
                for process, steps in trace.steps.items():
                    self._found[trace_number, process] = steps

    @cached_property
    def steps_and_phases(self) -> list[StepOrPhase]:
        """Steps and phases, process by process and in order of time within a process.

        A step that starts inside another step is left out and not counted.
        """
        numbered: list[StepOrPhase] = []
        marks = sorted(self._found_steps() + self._marked_by_ranges(), key=lambda mark: mark.order)
        for _, marks_of_process in groupby(marks, key=lambda mark: mark.owner):
            numbered += _numbered(marks_of_process)
        return numbered

    @cached_property
    def steps(self) -> dict[Owner, Steps]:
        """Steps of the host, by trace and process. Processes without steps are left out."""
        windows_of_owner: dict[Owner, list[Window]] = {}
        for mark in self.steps_and_phases:
            if mark.phase == STEP:
                window = (mark.start, mark.start + mark.duration)
                windows_of_owner.setdefault((mark.trace, mark.process), []).append(window)
        steps: dict[Owner, Steps] = {}
        for owner, windows in windows_of_owner.items():
            starts, ends = np.array(windows, np.int64).T
            steps[owner] = Steps(starts, ends, HOST)
        return steps

    @cached_property
    def threads(self) -> set[tuple[Any, ...]]:
        """Each thread that marked steps, as (number of the trace, process id, thread id)."""
        return {(mark.trace, mark.process, mark.thread) for mark in self.steps_and_phases if mark.phase == STEP}

    def window(self, trace: int, process: int | None) -> Window:
        """Return the time from the start of the first step of a process to the end of its last step.

        If the process has no steps, or is None, the steps of all processes of the trace count. If there are none
        either, return `ALWAYS`.
        """
        if process is not None and (trace, process) in self.steps:
            return self.steps[trace, process].window
        windows = [steps.window for (trace_of_steps, _), steps in self.steps.items() if trace_of_steps == trace]
        if not windows:
            return ALWAYS
        firsts, lasts = zip(*windows, strict=True)
        return min(firsts), max(lasts)

    def _found_steps(self) -> list[_Mark]:
        """Return the steps that were found in the traces."""
        marks: list[_Mark] = []
        for owner, steps in self._found.items():
            times = zip(steps.starts.tolist(), steps.ends.tolist(), steps.threads, strict=True)
            marks += [_Mark(owner, start, end, STEP, thread) for start, end, thread in times]
        return marks

    def _marked_by_ranges(self) -> list[_Mark]:
        """Return the phases that ranges mark, and the steps that ranges mark unless steps of traces count.

        Steps that warm up are left out.
        """
        if self._ranges is None:
            return []
        groups = self._ranges.group_fields("process", "name", "thread")
        phases = [mark_of(name) for _, _, name, _ in groups]
        is_mark = [phase in PHASES or (phase == STEP and self._ranges_mark_steps) for phase in phases]
        warm_up = self._warm_up_windows()
        marks: list[_Mark] = []
        for code, start, end in _times(self._ranges, is_mark):
            trace, process, _, thread = groups[code]
            owner = (trace, process)
            phase = phases[code]
            assert phase is not None
            if phase == STEP and warms_up(start, end, warm_up.get(owner, ())):
                continue
            marks.append(_Mark(owner, start, end, phase, thread))
        return marks

    def _warm_up_windows(self) -> dict[Owner, list[Window]]:
        """Return for each trace and process the windows of the ranges around steps that warm up."""
        windows: dict[Owner, list[Window]] = {}
        if self._ranges is None:
            return windows
        groups = self._ranges.group_fields("process", "name")
        is_around = [is_warm_up(name) for _, _, name in groups]
        for code, start, end in _times(self._ranges, is_around):
            trace, process, _ = groups[code]
            windows.setdefault((trace, process), []).append((start, end))
        return windows


def _numbered(marks: Iterable[_Mark]) -> Iterator[StepOrPhase]:
    """Yield the steps and phases for the marks of one process, which must be sorted by `_Mark.order`.

    A step that starts inside another step is left out. In the example the second step starts inside the first, so it is
    left out. The phase "forward" starts in the first step, and the phase "data" outside of all steps:

    >>> owner = (0, 4242)
    >>> marks = [
    ...     _Mark(owner, 0, 10_000, "step", 1),
    ...     _Mark(owner, 2_000, 8_000, "step", 1),
    ...     _Mark(owner, 3_000, 4_000, "forward", 1),
    ...     _Mark(owner, 12_000, 13_000, "data", 1),
    ... ]
    >>> [(mark.phase, mark.step, mark.start, mark.duration) for mark in _numbered(marks)]
    [('step', 1, 0, 10000), ('forward', 1, 3000, 1000), ('data', None, 12000, 1000)]
    """
    step_number = 0
    step_end = LONG_AGO
    for mark in marks:
        start = mark.start
        if mark.phase == STEP:
            # Times are rounded, so a step may seem to begin before the step that it follows ends. Its start is set to
            # that end.
            follows = start + ROUNDING_NS >= step_end and mark.end > step_end
            if start < step_end and not follows:
                continue
            start = max(start, step_end)
            step_number += 1
            step_end = mark.end
        is_in_step = step_number > 0 and start < step_end
        trace, process = mark.owner
        yield StepOrPhase(
            trace=trace,
            process=process,
            phase=mark.phase,
            step=step_number if is_in_step else None,
            start=start,
            duration=mark.end - start,
            thread=mark.thread,
        )


def _times(ranges: Events, is_chosen: Sequence[bool]) -> Iterator[tuple[int, int, int]]:
    """Yield code, start and end of each range whose group is chosen; `is_chosen` is by code."""
    chosen = ranges.mask(is_chosen)
    codes = ranges.code[chosen].tolist()
    starts = ranges.arrays["start"][chosen].tolist()
    durations = ranges.arrays["duration"][chosen].tolist()
    for code, start, duration in zip(codes, starts, durations, strict=True):
        yield code, start, start + duration
