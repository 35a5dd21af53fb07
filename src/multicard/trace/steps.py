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

# Part of a device's activity whose launching calls must be recorded for its own steps to be computed from them.
LEAST_RECORDED_SHARE = 0.9

# A range may seem to begin this much before the one that it touches ends: floats of microseconds since 1970 are
# multiples of a quarter.
ROUNDING_NS = 1000

# Ranges around the first steps of a program, or around each of them, which it does not measure itself.
_WARM_UP = re.compile(
    r"(?:train(?:ing)?[ _-]?)?warm[ _-]?up(?:[ _-]?(?:step|iteration|iter|batch|phase|loop|run)s?)?[ _#:-]*\d*",
    re.IGNORECASE,
)

# Start and end in nanoseconds, the end not included.
Window = tuple[int, int]
ALWAYS: Window = (-(1 << 62), 1 << 62)
# Stands for the unrecorded call of what was launched before the first step.
LONG_AGO = ALWAYS[0]


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
    be inferred from that.

    `first_step`: its start and end on the host. `call`, `start`, `stream`: of each activity when its launching call
    began, or `UNKNOWN`; when it began itself; and the number of its stream, counted from 0.

    The first step lasts from 10 to 20. On a stream that lags, work begins at 5, 15 and 30, and the first call that was
    recorded, at 12, is that of the work at 40. So the work at 5 and all before 40 is older than the steps:

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
    first_call = call.min()
    if first_call >= step_end:
        return is_early

    # For each stream the start of its first activity whose call was recorded. A stream without any such activity is
    # compared with the first one of the device.
    recorded_starts = start[~is_unknown]
    stream_count = int(stream.max()) + 1
    never = np.iinfo(np.int64).max
    first_recorded = np.full(stream_count, never)
    np.minimum.at(first_recorded, stream[~is_unknown], recorded_starts)
    first_recorded[first_recorded == never] = recorded_starts.min()

    is_before_recorded = is_unknown & (start < first_recorded[stream])
    # A stream lags if it still had such work to do when calls were recorded.
    shows_lag = is_before_recorded & (start >= first_call)
    stream_lags = np.zeros(stream_count, bool)
    stream_lags[stream[shows_lag]] = True
    return is_early | (is_before_recorded & stream_lags[stream])


def steps_on_device(steps: Steps, call: Integers, end: Integers) -> Steps:
    """Return steps as a device of the process ran them; those of the host where too few launches were recorded.

    A step begins when the host has begun it and the device has done all that was launched before; it ends when the
    host has ended it and the device has done all that was launched until then. So where the host begins a step as it
    ends the one before, the device does too. These are the moments that CUDA events would take that the host records as
    it begins and ends the step, if all of this activity is on one stream (CUDA Runtime API, cudaEventRecord).

    `steps` are those of the host; `call` and `end` of the activity that steps wait for: when its launching call began,
    or `UNKNOWN`, and when it ended. `LONG_AGO` is the call of what was launched before the first step: that
    step waits for it, and it does not count where launches must be recorded.

    The host begins a step at 0 and ends it at 10; the device works until 25 on what it launched at 5:

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
    # How many of the host's moments had passed at each launch: at 5 it was 1, so that the work counts to the moment 10.
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


class Marks:
    """Steps and phases that the processes of a capture marked by ranges."""

    def __init__(self, ranges: Events | None, traces: Sequence[Trace] = ()) -> None:
        """Take the ranges, with process, name, thread, start and duration.

        Steps that were found in `traces` count instead of those that ranges mark.
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
    def rows(self) -> list[dict[str, Any]]:
        """Steps and phases per process in order of time, as "trace", "process", "thread", "phase", "step" and times.

        "phase" is `STEP` or one of `PHASES`; "step" is the number of the step, from 1 in each process, None for a phase
        outside of steps; "start" and "duration" are nanoseconds of the host.

        A phase belongs to the step that holds its start. A step inside another is a range of that step's, no step.
        """
        rows: list[dict[str, Any]] = []
        marks = sorted(self._found_steps() + self._marked_by_ranges(), key=lambda mark: mark.order)
        for _, marks_of_process in groupby(marks, key=lambda mark: mark.owner):
            rows += _numbered(marks_of_process)
        return rows

    @cached_property
    def steps(self) -> dict[Owner, Steps]:
        """Steps of the host, by trace and process."""
        windows_of_owner: dict[Owner, list[Window]] = {}
        for row in self.rows:
            if row["phase"] == STEP:
                owner = (row["trace"], row["process"])
                window = (row["start"], row["start"] + row["duration"])
                windows_of_owner.setdefault(owner, []).append(window)
        steps: dict[Owner, Steps] = {}
        for owner, windows in windows_of_owner.items():
            starts, ends = np.array(windows, np.int64).T
            steps[owner] = Steps(starts, ends, HOST)
        return steps

    @cached_property
    def threads(self) -> set[tuple[Any, ...]]:
        """Trace, process and number of the threads that marked the steps."""
        return {(row["trace"], row["process"], row["thread"]) for row in self.rows if row["phase"] == STEP}

    def window(self, trace: int, process: int | None) -> Window:
        """Return the time from the first step's start to the last one's end.

        It is that of the process; if the process has no steps, that of all processes of its trace; if these have none,
        `ALWAYS`.
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
        """Return the phases among the ranges, and without stated steps the steps that do not warm up."""
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
        """Return the ranges of each process that are around steps that warm up."""
        windows: dict[Owner, list[Window]] = {}
        if self._ranges is None:
            return windows
        groups = self._ranges.group_fields("process", "name")
        is_around = [is_warm_up(name) for _, _, name in groups]
        for code, start, end in _times(self._ranges, is_around):
            trace, process, _ = groups[code]
            windows.setdefault((trace, process), []).append((start, end))
        return windows


def _numbered(marks: Iterable[_Mark]) -> Iterator[dict[str, Any]]:
    """Yield the rows of the marks of one process, given in their order, without steps inside other steps.

    The second step lies inside the first, so it is none, and the phase at 12 is outside every step:

    >>> owner = (0, 4242)
    >>> marks = [
    ...     _Mark(owner, 0, 10_000, "step", 1),
    ...     _Mark(owner, 2_000, 8_000, "step", 1),
    ...     _Mark(owner, 3_000, 4_000, "forward", 1),
    ...     _Mark(owner, 12_000, 13_000, "data", 1),
    ... ]
    >>> [(row["phase"], row["step"], row["start"], row["duration"]) for row in _numbered(marks)]
    [('step', 1, 0, 10000), ('forward', 1, 3000, 1000), ('data', None, 12000, 1000)]
    """
    step_number = 0
    step_end = LONG_AGO
    for mark in marks:
        start = mark.start
        if mark.phase == STEP:
            # A step may seem to begin before the one that it follows ends, as times are rounded.
            follows = start + ROUNDING_NS >= step_end and mark.end > step_end
            if start < step_end and not follows:
                continue
            start = max(start, step_end)
            step_number += 1
            step_end = mark.end
        is_in_step = step_number > 0 and start < step_end
        trace, process = mark.owner
        yield {
            "trace": trace,
            "process": process,
            "phase": mark.phase,
            "step": step_number if is_in_step else None,
            "start": start,
            "duration": mark.end - start,
            "thread": mark.thread,
        }


def _times(ranges: Events, is_chosen: Sequence[bool]) -> Iterator[tuple[int, int, int]]:
    """Yield code, start and end of the ranges of the chosen groups."""
    chosen = ranges.mask(is_chosen)
    codes = ranges.code[chosen].tolist()
    starts = ranges.arrays["start"][chosen].tolist()
    durations = ranges.arrays["duration"][chosen].tolist()
    for code, start, duration in zip(codes, starts, durations, strict=True):
        yield code, start, start + duration
