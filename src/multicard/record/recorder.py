"""Times every step and its phases."""

import math
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from multicard.core.files import write_csv
from multicard.core.layout import PHASES, REWARDS, STEP_COLUMNS
from multicard.record.clock import clock_for

Value = torch.Tensor | Callable[[], torch.Tensor]
COUNTED_STEP = 2  # whose operations are counted: the first one also makes the state of the optimizer, and compiles


class Diverged(Exception):
    """The loss is no longer a finite number."""

    def __init__(self, loss: float, step: int):
        super().__init__(f"the loss is {loss} at step {step}")
        self.loss, self.step = loss, step


class Recorder:
    """Records the steps of one rank.

    A step costs a few clock marks. Marks and losses are read when `settle` is called, so the measured loop never waits
    for the GPU; peaks of GPU memory there and where another window begins, since PyTorch makes a dictionary of all its
    counters for them.

    Of the `devices` of the rank the first is timed; peak memory is that of the fullest, and `settle` waits
    for all. `reset_peaks`: whether peaks of GPU memory are of each window, which resets PyTorch's counters, and not of
    all that the process has done so far. `counted_step`: of this process, whose operations are counted if it is of the
    warm-up.
    """

    def __init__(
        self, rank: int, devices: Sequence[torch.device], reset_peaks: bool = True, counted_step: int | None = None
    ):
        self.rank, self.devices, self.reset_peaks = rank, devices, reset_peaks
        self._counted_step, self._counter = counted_step, None
        self.clock = clock_for(devices)
        self.rows: list[dict[str, Any]] = []
        # When the measured steps of each epoch began and ended, by `time.monotonic`: on a GPU, when that did.
        self.windows: list[list[float]] = []
        self._window_epoch: int | None = None  # of the last one
        self._pending: list[Step] = []
        self._current: Step | None = None
        self._window: str | None = None
        self._count = 0
        self._start_s = 0.0  # of the latest step that was settled
        self._start: Any = None  # the mark of that moment

    def begin(self, epoch: int, window: str, start: Any = None) -> "Step":
        """Begin a step now, or at a mark made before."""
        if self.reset_peaks and self.devices[0].type == "cuda" and (window != self._window or not self._pending):
            self._note_peaks()
        self._window = window
        self._count += 1
        step = self._current = Step(self._count, epoch, window)
        step.start = self.clock.mark() if start is None else start
        if self._count == self._counted_step and window == "warmup":
            from multicard.record.operations import StepCounter

            self._counter = StepCounter(len(self.devices))
        return step

    def end(self) -> None:
        """End the current step, whose `end` is a mark already."""
        step = self._current
        if self._counter is not None and self._count == self._counted_step:
            self._counter.end()
            if (tokens := step.counts["padded_tokens"]) is not None:
                self._counter.record["padded_tokens"] = tokens
        if self.devices[0].type != "cuda":
            step.peaks = peak_memory(*self.devices)
        self._pending.append(step)
        self._current = None

    def _note_peaks(self) -> None:
        """Give the steps that have ended since the last call the peaks since then."""
        unread = [step for step in self._pending if step.peaks is None]
        if unread or not self._pending:
            peaks = peak_memory(*self.devices, reset=self.reset_peaks)
            for step in unread:
                step.peaks = peaks

    @property
    def operations(self) -> dict[str, Any] | None:
        """Of the step that was counted, as `StepCounter` records them; None where none was."""
        return self._counter and self._counter.record

    def settle(self) -> list[dict[str, Any]]:
        """Read the marks and losses of the steps since the last call, and return their rows.

        Raises `Diverged` if a loss is not finite. The rows are kept all the same.
        """
        self.clock.settle()
        now = self.clock.now() if any(step.window == "measured" for step in self._pending) else None
        if self._pending:
            self._note_peaks()
        fresh = []
        for step in self._pending:
            # From step to step: CUDA gives milliseconds in single precision, too coarse for the length of a run.
            if self._start is not None:
                self._start_s += self.clock.seconds(self._start, step.start)
            self._start = step.start
            step.settled = step.row(self.rank, self.clock, self._start_s)
            fresh.append(step.settled)
            if now and step.window == "measured":
                start_s, end_s = (now[1] - self.clock.seconds(mark, now[0]) for mark in (step.start, step.end))
                if step.epoch != self._window_epoch:
                    self.windows.append([start_s, end_s])
                self.windows[-1][1], self._window_epoch = end_s, step.epoch
        self._pending.clear()
        self.clock.forget(self._start)
        self.rows += fresh
        for row in fresh:
            if row["loss"] is not None and not math.isfinite(row["loss"]):
                raise Diverged(row["loss"], row["step"])
        return fresh

    def write(self, path: Path) -> None:
        """Write the settled steps as CSV."""
        write_csv(path, STEP_COLUMNS, self.rows)

    def write_ended(self, path: Path) -> None:
        """Write all steps that have ended as CSV, without losses, and leave everything as it is.

        For another thread than the one that trains, which it does not make wait: of a GPU it takes the steps that it
        has reached.
        """
        rows, start_s, start = list(self.rows), self._start_s, self._start
        for step in list(self._pending):
            if not self.clock.has_reached(step.end):
                break
            if start is not None:
                start_s += self.clock.seconds(start, step.start)
            start = step.start
            rows.append(step.row(self.rank, self.clock, start_s, has_values=False))
        write_csv(path, STEP_COLUMNS, rows)


class Step:
    """Marks of one step, not yet read."""

    def __init__(self, number: int, epoch: int, window: str):
        self.number, self.epoch, self.window = number, epoch, window
        self.start = self.end = None
        self.phases: list[tuple[str, Any, Any]] = []
        self.counts: dict[str, int | None] = {"samples": 0, "tokens": None, "padded_tokens": None}
        # Tensors that stay on their device until they are read, or what gives them then, each with its weight.
        self.values: dict[str, list[tuple[float, Value]]] = {name: [] for name in ("loss", *REWARDS)}
        self.settled: dict[str, Any] | None = None  # its row
        self.peaks: PeakMemory | None = None

    def row(self, rank: int, clock: Any, start_s: float, has_values: bool = True) -> dict[str, Any]:
        """Of steps.csv; to read values of a GPU is to wait for it."""
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
            "peak_memory_bytes": self.peaks and self.peaks.allocated,
            "peak_reserved_bytes": self.peaks and self.peaks.reserved,
        }

    def means(self) -> dict[str, float]:
        """Of each value that it has."""
        return {name: _mean(found) for name, found in self.values.items() if found}


def first_not_finite(losses: Any) -> float | None:
    """The first of the tensors that a backward pass began from which is no finite number; None where there is none.

    Only single numbers count that a process has by itself, and not in 16 bits, whose range a scaled loss may leave.

    >>> first_not_finite([torch.tensor(1.0), torch.tensor(float("inf"))]), first_not_finite(torch.ones(2) / 0)
    (inf, None)
    """
    for loss in losses if isinstance(losses, list | tuple) else [losses]:
        is_number = type(loss) is torch.Tensor and loss.numel() == 1 and loss.is_floating_point()
        if is_number and loss.dtype != torch.float16 and not math.isfinite(value := loss.item()):
            return value
    return None


def _mean(parts: Sequence[tuple[float, Value]]) -> float:
    """Weighted mean of the means of tensors."""
    tensors = ((weight, values() if callable(values) else values) for weight, values in parts)
    weighted = sum(weight * values.double().mean().item() for weight, values in tensors)
    return weighted / sum(weight for weight, _ in parts)


class PeakMemory(NamedTuple):
    """Peaks in bytes: allocated for tensors, and reserved by PyTorch's caching allocator (GPU only)."""

    allocated: int
    reserved: int | None


def peak_memory(*devices: torch.device, reset: bool = True) -> PeakMemory:
    """Peak memory: of the fullest GPU since the last call, or resident on the host so far.

    On a GPU these are `torch.cuda.max_memory_allocated` and `max_memory_reserved`, which are then reset together
    (`reset`); none of it synchronizes. On a CPU `allocated` is the peak resident set of the process since its start,
    which never falls, and nothing is reserved.
    """
    if devices[0].type == "cuda":
        peaks = [_peaks_of_gpu(gpu, reset) for gpu in devices]
        return PeakMemory(max(peak.allocated for peak in peaks), max(peak.reserved for peak in peaks))
    unit = 1 if sys.platform == "darwin" else 1024
    return PeakMemory(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None)


def _peaks_of_gpu(gpu: torch.device, reset: bool) -> PeakMemory:
    # The two functions of PyTorch would each fetch all the counters, and flatten and sort them, in every step.
    counters = torch.cuda.memory_stats_as_nested_dict(gpu)
    if reset:
        torch.cuda.reset_peak_memory_stats(gpu)
    return PeakMemory(*(counters[name]["all"]["peak"] for name in ("allocated_bytes", "reserved_bytes")))
