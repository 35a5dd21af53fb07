"""Time every step and its phases, and write them as steps.csv."""

import math
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from multicard.core.files import write_csv
from multicard.core.layout import PHASES, REWARDS, STEP_COLUMNS
from multicard.record.clock import Clock, Mark, clock_for

if TYPE_CHECKING:
    from multicard.record.operations import StepCounter

Value = torch.Tensor | Callable[[], torch.Tensor]
# The step whose operations are counted. The first one also makes the state of the optimizer, and compiles.
COUNTED_STEP = 2
MEASURED = "measured"


class Diverged(Exception):
    """The loss is no longer a finite number."""

    def __init__(self, loss: float, step: int):
        super().__init__(f"the loss is {loss} at step {step}")
        self.loss = loss
        self.step = step


class PeakMemory(NamedTuple):
    """Peaks in bytes: allocated for tensors, and reserved by PyTorch's caching allocator (GPU only)."""

    allocated: int
    reserved: int | None


class Step:
    """Marks of one step, not yet read.

    `end` is None until the step has ended, `settled` (its row of steps.csv) until its marks are read, `peaks` until the
    peaks of memory are.
    """

    def __init__(self, number: int, epoch: int, window: str, start: Mark):
        self.number = number
        self.epoch = epoch
        self.window = window
        self.start = start
        self.end: Mark | None = None
        self.phases: list[tuple[str, Mark, Mark]] = []  # name, start and end
        self.counts: dict[str, int | None] = {"samples": 0, "tokens": None, "padded_tokens": None}
        # Weight and value of what was logged. Tensors stay on their device until they are read.
        self.values: dict[str, list[tuple[float, Value]]] = {name: [] for name in ("loss", *REWARDS)}
        self.settled: dict[str, Any] | None = None
        self.peaks: PeakMemory | None = None

    def row(self, rank: int, clock: Clock, start_s: float, has_values: bool = True) -> dict[str, Any]:
        """Return this step as a row of steps.csv. With values it waits for a GPU that computes them."""
        times: dict[str, float | None] = {f"{name}_s": None for name in (*PHASES, "evaluation")}
        for name, start, end in self.phases:
            times[f"{name}_s"] = (times[f"{name}_s"] or 0.0) + clock.seconds(start, end)
        return {
            "rank": rank,
            "epoch": self.epoch,
            "step": self.number,
            "window": self.window,
            "start_s": start_s,
            "duration_s": clock.seconds(self.start, self.end),
            **times,
            **self.counts,
            **dict.fromkeys(self.values),
            **(self.means() if has_values else {}),
            "peak_memory_bytes": self.peaks.allocated if self.peaks else None,
            "peak_reserved_bytes": self.peaks.reserved if self.peaks else None,
        }

    def means(self) -> dict[str, float]:
        """Return the weighted mean of each value that was logged."""
        return {name: _weighted_mean(logged) for name, logged in self.values.items() if logged}


def _weighted_mean(logged: Sequence[tuple[float, Value]]) -> float:
    """Return the mean of the elements' means, by weights.

    >>> _weighted_mean([(1.0, torch.tensor([2.0, 4.0])), (3.0, lambda: torch.tensor(7.0))])
    6.0
    """
    tensors = ((weight, value() if callable(value) else value) for weight, value in logged)
    total = sum(weight * tensor.double().mean().item() for weight, tensor in tensors)
    return total / sum(weight for weight, _ in logged)


class Recorder:
    """Records the steps of one rank.

    A step costs a few clock marks. Marks and losses are read when `settle` is called, so the measured loop never waits
    for the GPU; peaks of GPU memory there and where another window begins, since PyTorch makes a dictionary of all its
    counters for them.

    Of the `devices` of the rank the first is timed; peak memory is that of the fullest, and `settle` waits
    for all. `reset_peaks`: peaks of GPU memory are of each window, which resets PyTorch's counters; else of all that
    the process has done so far. `counted_step`: number of the step whose operations are counted, if it is in the
    warm-up; None for none.
    """

    def __init__(
        self, rank: int, devices: Sequence[torch.device], reset_peaks: bool = True, counted_step: int | None = None
    ):
        self.rank = rank
        self.devices = devices
        self.reset_peaks = reset_peaks
        self.clock = clock_for(devices)
        self.rows: list[dict[str, Any]] = []  # the settled steps
        # Start and end of the measured steps of each epoch, by `time.monotonic`; on a GPU, when that got there.
        self.windows: list[list[float]] = []
        self._epoch_of_last_window: int | None = None
        self._counted_step = counted_step
        self._counter: StepCounter | None = None
        self._pending: list[Step] = []  # ended, not settled
        self._last_window: str | None = None
        self._count = 0
        # The start of the latest settled step: its mark, and seconds since that of the first.
        self._settled_start: Mark | None = None
        self._settled_start_s = 0.0

    def begin(self, epoch: int, window: str, start: Mark | None = None) -> Step:
        """Begin a step now, or at a mark made before."""
        # Peaks are read where a window begins, and after a pause, which has peaks of its own.
        begins_window = window != self._last_window or not self._pending
        if self.reset_peaks and begins_window and self.devices[0].type == "cuda":
            self._note_peaks()
        self._last_window = window
        self._count += 1
        step = Step(self._count, epoch, window, self.clock.mark() if start is None else start)
        if self._count == self._counted_step and window == "warmup":
            # Few runs count operations, and what that needs of PyTorch takes long to import.
            from multicard.record.operations import StepCounter

            self._counter = StepCounter(len(self.devices))
        return step

    def end(self, step: Step) -> None:
        """End a step, whose `end` is a mark already."""
        if self._counter is not None and step.number == self._counted_step:
            self._counter.end()
            if (tokens := step.counts["padded_tokens"]) is not None:
                self._counter.record["padded_tokens"] = tokens
        if self.devices[0].type != "cuda":
            step.peaks = peak_memory(*self.devices)
        self._pending.append(step)

    def _note_peaks(self) -> None:
        """Give the steps that have ended since the last call the peaks since then."""
        unread = [step for step in self._pending if step.peaks is None]
        # Without pending steps the counters are read all the same, since that resets them.
        if unread or not self._pending:
            peaks = peak_memory(*self.devices, reset=self.reset_peaks)
            for step in unread:
                step.peaks = peaks

    @property
    def operations(self) -> dict[str, Any] | None:
        """Operations of the step that was counted, as `StepCounter.record`; None if none was."""
        return None if self._counter is None else self._counter.record

    def settle(self) -> list[dict[str, Any]]:
        """Read the marks and losses of the steps since the last call, and return their rows.

        Raises `Diverged` if a loss is not finite. The rows are kept all the same.
        """
        self.clock.settle()
        has_measured = any(step.window == MEASURED for step in self._pending)
        now = self.clock.now() if has_measured else None
        if self._pending:
            self._note_peaks()
        fresh = []
        for step in self._pending:
            start_s = self._seconds_until(step)
            self._settled_start = step.start
            self._settled_start_s = start_s
            step.settled = step.row(self.rank, self.clock, start_s)
            fresh.append(step.settled)
            if now is not None and step.window == MEASURED:
                self._note_window(step, *now)
        self._pending.clear()
        self.clock.forget(self._settled_start)
        self.rows += fresh
        for row in fresh:
            if row["loss"] is not None and not math.isfinite(row["loss"]):
                raise Diverged(row["loss"], row["step"])
        return fresh

    def _seconds_until(self, step: Step) -> float:
        """Return when a step started, in seconds since the first one did.

        Sums from step to step: CUDA gives milliseconds in single precision, too coarse for the length of a run.
        """
        if self._settled_start is None:
            return self._settled_start_s
        return self._settled_start_s + self.clock.seconds(self._settled_start, step.start)

    def _note_window(self, step: Step, now: Mark, now_s: float) -> None:
        """Extend the window of a measured step's epoch by it; `now_s`: `now` by the clock of the machine."""
        start_s = now_s - self.clock.seconds(step.start, now)
        end_s = now_s - self.clock.seconds(step.end, now)
        if step.epoch != self._epoch_of_last_window:
            self.windows.append([start_s, end_s])
        self.windows[-1][1] = end_s
        self._epoch_of_last_window = step.epoch

    def write(self, path: Path) -> None:
        """Write the settled steps as CSV."""
        write_csv(path, STEP_COLUMNS, self.rows)

    def write_ended(self, path: Path) -> None:
        """Write all steps that have ended as CSV, without losses, and leave everything as it is.

        For another thread than the one that trains, which it does not make wait: on a GPU it writes the steps that the
        GPU has finished.
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
            rows.append(step.row(self.rank, self.clock, start_s, has_values=False))
        write_csv(path, STEP_COLUMNS, rows)


def first_not_finite(losses: object) -> float | None:
    """Return the first of the tensors that a backward pass began from which is no finite number, or None.

    Only single numbers count that a process has by itself, and not in 16 bits, whose range a scaled loss may leave.

    >>> first_not_finite([torch.tensor(1.0), torch.tensor(float("inf"))]), first_not_finite(torch.ones(2) / 0)
    (inf, None)
    """
    for loss in losses if isinstance(losses, list | tuple) else [losses]:
        # A DTensor, whose number is shared by several processes, is of a type of its own.
        if type(loss) is not torch.Tensor or loss.numel() != 1:
            continue
        if loss.is_floating_point() and loss.dtype != torch.float16:
            value = loss.item()
            if not math.isfinite(value):
                return value
    return None


def peak_memory(*devices: torch.device, reset: bool = True) -> PeakMemory:
    """Return the peak memory in bytes: of the fullest GPU since the last call, or resident on the host so far.

    On a GPU these are `torch.cuda.max_memory_allocated` and `max_memory_reserved`, which are then reset together
    (`reset`); none of it synchronizes. On a CPU `allocated` is the peak resident set of the process since its start,
    which never falls, and nothing is reserved.
    """
    if devices[0].type == "cuda":
        peaks = [_peaks_of_gpu(gpu, reset) for gpu in devices]
        return PeakMemory(max(allocated for allocated, _ in peaks), max(reserved for _, reserved in peaks))
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None)


def _peaks_of_gpu(gpu: torch.device, reset: bool) -> tuple[int, int]:
    """Return the peaks of allocated and reserved bytes."""
    # The two functions of PyTorch would each fetch all the counters, and flatten and sort them, in every step.
    counters = torch.cuda.memory_stats_as_nested_dict(gpu)
    if reset:
        torch.cuda.reset_peak_memory_stats(gpu)
    return counters["allocated_bytes"]["all"]["peak"], counters["reserved_bytes"]["all"]["peak"]
