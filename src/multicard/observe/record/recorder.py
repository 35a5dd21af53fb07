"""Time every step and its phases, and write them as steps.csv."""

import math
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from multicard.core.files import write_csv
from multicard.core.layout import PHASES, REWARDS, STEP_COLUMNS
from multicard.core.values import Row
from multicard.observe.record.clock import Clock, Mark, clock_for

if TYPE_CHECKING:
    from multicard.observe.record.operations import CountedOperations, StepCounter

Value = torch.Tensor | Callable[[], torch.Tensor]
# Number of the step whose operations are counted. It is not the first, which also makes the optimizer's state and
# compiles.
COUNTED_STEP = 2
VALUES = ("loss", *REWARDS)  # columns of values that a script logs
MEASURED = "measured"
# On a CPU the peak of memory is read once in so many steps, because the system takes longer for it than all else that
# is done at the end of a step. It never falls, so in a window the last value is the highest, and every window has one.
STEPS_PER_PEAK = 10


class Diverged(Exception):
    """The loss is no longer a finite number."""

    def __init__(self, loss: float, step: int):
        super().__init__(f"the loss is {loss} at step {step}")
        self.loss = loss
        self.step = step


class PeakMemory(NamedTuple):
    """Peaks of memory in bytes, on the GPU or on the host; see `peak_memory`."""

    allocated: int  # on a GPU for tensors; on a CPU the resident set of the process
    reserved: int | None  # on a GPU by PyTorch's caching allocator; on a CPU None


class StepCounts(NamedTuple):
    """Numbers of samples and tokens of a step, on one rank; None for what is not known."""

    samples: int | None = None
    tokens: int | None = None
    padded_tokens: int | None = None  # padding included


NO_SAMPLES = StepCounts(samples=0)  # the counts of a step for which none are stated


@dataclass
class SettledStep:
    """A step whose marks are read: a row of steps.csv."""

    rank: int
    number: int  # of the step, from 1
    epoch: int
    window: str  # "warmup", "measured" or "profiled"
    start_s: float  # seconds from the start of the first step
    duration_s: float
    phases_s: Mapping[str, float]  # seconds of each phase that the step had, by the phase's name
    counts: StepCounts
    means: Mapping[str, float]  # mean of each value that was logged, by the name of its column
    peaks: PeakMemory | None  # None if they are not read yet

    def cells(self) -> Row:
        """Return the cells of the row; None for a phase that the step did not have, and for what is not known."""
        return {
            "rank": self.rank,
            "epoch": self.epoch,
            "step": self.number,
            "window": self.window,
            "start_s": self.start_s,
            "duration_s": self.duration_s,
            **{f"{phase}_s": self.phases_s.get(phase) for phase in (*PHASES, "evaluation")},
            **self.counts._asdict(),
            **{name: self.means.get(name) for name in VALUES},
            "peak_memory_bytes": self.peaks.allocated if self.peaks else None,
            "peak_reserved_bytes": self.peaks.reserved if self.peaks else None,
        }


class Step:
    """Marks, counts and logged values of one step.

    `end` is None until the step has ended, `settled` until its marks are read, and `peaks` until the peaks of memory
    are read. `garbage_s`: seconds of the wait for data in which Python collected garbage by itself. A collection comes
    where enough objects were made, by whatever code, so it is no loading, and counts as time outside of the phases.
    """

    __slots__ = (
        "counts", "end", "epoch", "garbage_s", "number", "peaks", "phases", "settled", "start", "values", "window",
    )  # fmt: skip

    def __init__(self, number: int, epoch: int, window: str, start: Mark):
        self.number = number
        self.epoch = epoch
        self.window = window
        self.start = start
        self.end: Mark | None = None
        self.phases: list[tuple[str, Mark, Mark]] = []  # name, start and end
        self.counts = NO_SAMPLES
        # Weight and value of each time that a name was logged. Tensors stay on their device until they are read.
        self.values: dict[str, list[tuple[float, Value]]] = defaultdict(list)
        self.settled: SettledStep | None = None
        self.peaks: PeakMemory | None = None
        self.garbage_s = 0.0

    def read(self, rank: int, clock: Clock, start_s: float, has_values: bool = True) -> SettledStep:
        """Read the marks of this step.

        `start_s`: seconds from the start of the first step to that of this one. `has_values`: the result has the means
        of the logged values, for which this waits until the GPU has computed them; otherwise it has none.
        """
        phases_s: dict[str, float] = {}
        for name, start, end in self.phases:
            phases_s[name] = phases_s.get(name, 0.0) + clock.seconds(start, end)
        if "data" in phases_s:
            phases_s["data"] = max(0.0, phases_s["data"] - self.garbage_s)
        return SettledStep(
            rank=rank,
            number=self.number,
            epoch=self.epoch,
            window=self.window,
            start_s=start_s,
            duration_s=clock.seconds(self.start, self.end),
            phases_s=phases_s,
            counts=self.counts,
            means=self.means() if has_values else {},
            peaks=self.peaks,
        )

    def means(self) -> dict[str, float]:
        """Return the weighted mean of each value that was logged in this step; waits until the GPU has computed it."""
        return {name: _weighted_mean(logged) for name, logged in self.values.items()}


def _weighted_mean(logged: Sequence[tuple[float, Value]]) -> float:
    """Return the weighted mean of logged tensors; each counts by the mean of its elements.

    >>> _weighted_mean([(1.0, torch.tensor([2.0, 4.0])), (3.0, lambda: torch.tensor(7.0))])
    6.0
    """
    total = sum(weight * read_value(value) for weight, value in logged)
    return total / sum(weight for weight, _ in logged)


def read_value(value: Value) -> float:
    """Return the mean of the elements of a logged tensor; waits until the GPU has computed them."""
    tensor = value() if callable(value) else value
    return tensor.double().mean().item()


class Recorder:
    """Records the steps of one rank.

    A step costs a few clock marks. Marks and losses are read only when `settle` is called, so the measured loop never
    waits for the GPU. Peaks of memory are not read in each step either: of a GPU because PyTorch makes a dictionary of
    all its counters for them, of a CPU see `STEPS_PER_PEAK`.

    `devices`: devices of the rank. Times are those of the first one, peaks of memory are the highest of any of them,
    and `settle` waits for all of them.
    `reset_peaks`: if True, peaks of GPU memory are read, and PyTorch's counters reset, where a window begins and in
    `settle`, so that a step has the peaks of its window. If False, they are read only in `settle`, and are those since
    the process started (or since the script reset them).
    `counted_step`: number of the step whose operations are counted, if it is in the warm-up; None for none.
    """

    def __init__(
        self, rank: int, devices: Sequence[torch.device], reset_peaks: bool = True, counted_step: int | None = None
    ):
        self.rank = rank
        self.devices = devices
        self.reset_peaks = reset_peaks
        self._is_on_cpu = devices[0].type != "cuda"
        self.clock = clock_for(devices)
        self.rows: list[SettledStep] = []
        # For each epoch, start of its first and end of its last measured step, in seconds of `time.monotonic`. On a GPU
        # these are the moments when the GPU reached them.
        self.windows: list[list[float]] = []
        self._epoch_of_last_window: int | None = None
        self._counted_step = counted_step
        self._counter: StepCounter | None = None
        self._pending: list[Step] = []  # ended, not settled
        self._last_window: str | None = None
        self._count = 0
        # The start of the latest settled step: its mark, and the seconds from the start of the first step to it.
        self._settled_start: Mark | None = None
        self._settled_start_s = 0.0

    def begin(self, epoch: int, window: str, start: Mark | None = None) -> Step:
        """Begin a step at the mark `start`, or now if that is None."""
        # If no step is pending, `settle` was called: there was a pause, which has peaks of its own.
        begins_window = window != self._last_window or not self._pending
        if begins_window and (self.reset_peaks or self._is_on_cpu):
            self.note_peaks()
        self._last_window = window
        self._count += 1
        step = Step(self._count, epoch, window, self.clock.mark() if start is None else start)
        if self._count == self._counted_step and window == "warmup":
            # Imported only if operations are counted, because the parts of PyTorch that this needs take long to import.
            from multicard.observe.record.operations import StepCounter

            self._counter = StepCounter(len(self.devices))
        return step

    def end(self, step: Step) -> None:
        """Take a step that has ended; its `end` must be set."""
        if self._counter is not None and step.number == self._counted_step:
            self._counter.end(step.counts.padded_tokens)
        self._pending.append(step)
        if self._is_on_cpu and step.number % STEPS_PER_PEAK == 0:
            self.note_peaks()

    def note_peaks(self) -> None:
        """Read the peaks of memory, and set them in the steps that have ended since the last call."""
        unread = list(takewhile(lambda step: step.peaks is None, reversed(self._pending)))
        # If no step is pending, the counters are read nevertheless, because reading resets them.
        if unread or not self._pending:
            peaks = peak_memory(*self.devices, reset=self.reset_peaks)
            for step in unread:
                step.peaks = peaks

    @property
    def operations(self) -> "CountedOperations | None":
        """Operations of the step that was counted; None if none was."""
        return None if self._counter is None else self._counter.counted

    def settle(self) -> list[SettledStep]:
        """Read the marks and losses of the steps that have ended since the last call, and return these steps.

        They are added to `rows`. Raises `Diverged` after that if a loss is not finite.
        """
        self.clock.settle()
        has_measured = any(step.window == MEASURED for step in self._pending)
        now = self.clock.now() if has_measured else None
        if self._pending:
            self.note_peaks()
        fresh = []
        for step in self._pending:
            start_s = self._seconds_until(step)
            self._settled_start = step.start
            self._settled_start_s = start_s
            step.settled = step.read(self.rank, self.clock, start_s)
            fresh.append(step.settled)
            if now is not None and step.window == MEASURED:
                self._note_window(step, *now)
        self._pending.clear()
        self.clock.forget(self._settled_start)
        self.rows += fresh
        for row in fresh:
            loss = row.means.get("loss")
            if loss is not None and not math.isfinite(loss):
                raise Diverged(loss, row.number)
        return fresh

    def _seconds_until(self, step: Step) -> float:
        """Return the seconds from the start of the first step to the start of `step`.

        They are summed from step to step, because CUDA gives milliseconds in single precision, which is too coarse for
        the length of a run.
        """
        if self._settled_start is None:
            return self._settled_start_s
        return self._settled_start_s + self.clock.seconds(self._settled_start, step.start)

    def _note_window(self, step: Step, now: Mark, now_s: float) -> None:
        """Extend the window of the step's epoch by this measured step; begin a window if it is the epoch's first.

        `now_s`: `time.monotonic` at the mark `now`.
        """
        start_s = now_s - self.clock.seconds(step.start, now)
        end_s = now_s - self.clock.seconds(step.end, now)
        if step.epoch != self._epoch_of_last_window:
            self.windows.append([start_s, end_s])
        self.windows[-1][1] = end_s
        self._epoch_of_last_window = step.epoch

    def write(self, path: Path) -> None:
        """Write the settled steps as CSV."""
        write_csv(path, STEP_COLUMNS, [row.cells() for row in self.rows])

    def write_ended(self, path: Path) -> None:
        """Write the steps that have ended as CSV, without changing the state of this recorder.

        Another thread than the one that trains calls this, and the training thread does not have to wait for it. Steps
        that are not settled have no losses yet, and are left out from the first one that the GPU has not finished.
        """
        rows = list(self.rows)
        start = self._settled_start
        start_s = self._settled_start_s
        for step in list(self._pending):
            if not self.clock.has_reached(step.end):
                break
            if start is not None:
                start_s += self.clock.seconds(start, step.start)
            start = step.start
            rows.append(step.read(self.rank, self.clock, start_s, has_values=False))
        write_csv(path, STEP_COLUMNS, [row.cells() for row in rows])


def first_not_finite(losses: object) -> float | None:
    """Return the first loss that is not finite; None if there is none.

    `losses`: the tensor from which a backward pass began, or a list or tuple of several. A tensor counts if it is a
    plain tensor with a single floating-point number, which is not of type float16: a scaled loss may leave its range.

    >>> first_not_finite([torch.tensor(1.0), torch.tensor(float("inf"))]), first_not_finite(torch.ones(2) / 0)
    (inf, None)
    """
    for loss in losses if isinstance(losses, list | tuple) else [losses]:
        # This leaves out a DTensor, whose number several processes share.
        if type(loss) is not torch.Tensor or loss.numel() != 1:
            continue
        if loss.is_floating_point() and loss.dtype != torch.float16:
            value = loss.item()
            if not math.isfinite(value):
                return value
    return None


def peak_memory(*devices: torch.device, reset: bool = True) -> PeakMemory:
    """Return the peaks of memory in bytes: of these GPUs, or of this process if the first device is a CPU.

    On GPUs they are the highest `torch.cuda.max_memory_allocated` of any GPU, and the highest `max_memory_reserved`,
    since these counters were last reset. `reset`: reset them after reading. Neither waits for a GPU.
    On a CPU, `allocated` is the peak resident set of the process since its start, which never falls, and `reserved` is
    None; `reset` has no effect.
    """
    if devices[0].type == "cuda":
        peaks = [_peaks_of_gpu(gpu, reset) for gpu in devices]
        return PeakMemory(max(allocated for allocated, _ in peaks), max(reserved for _, reserved in peaks))
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None)


def _peaks_of_gpu(gpu: torch.device, reset: bool) -> tuple[int, int]:
    """Return the peaks of allocated and of reserved bytes; `reset`: reset them after reading."""
    # `max_memory_allocated` and `max_memory_reserved` would each fetch all counters, and flatten and sort them.
    counters = torch.cuda.memory_stats_as_nested_dict(gpu)
    if reset:
        torch.cuda.reset_peak_memory_stats(gpu)
    return counters["allocated_bytes"]["all"]["peak"], counters["reserved_bytes"]["all"]["peak"]
