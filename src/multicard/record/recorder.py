"""Times every step and its phases."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from multicard.core.files import write_csv
from multicard.core.layout import PHASES, REWARDS, STEP_COLUMNS
from multicard.record.capture import Capture
from multicard.record.clock import Clock, clock_for
from multicard.record.memory import PeakMemory, peak_memory

COUNTED_STEP = 2  # whose operations are counted: the first one also makes the state of the optimizer, and compiles


class Diverged(Exception):
    """The loss is no longer a finite number."""

    def __init__(self, loss: float, step: int):
        super().__init__(f"the loss is {loss} at step {step}")
        self.loss, self.step = loss, step


class Recorder:
    """Records the steps of one rank.

    A step costs a few clock marks. Marks and losses are read when `settle` is called between epochs, so the measured
    loop never waits for the GPU; peaks of GPU memory there and where another window begins, since PyTorch makes a
    dictionary of all its counters for them.

    Parameters
    ----------
    device
        Whose clock times the steps.
    devices
        All that the rank computes on, if these are more than `device`; peak memory is that of the fullest, and `settle`
        waits for all.
    clock
        That times the steps, if not the one that fits `device`.
    reset_peaks
        Whether peaks of GPU memory are of each window (of an epoch), which resets PyTorch's counters, and not of all
        that the process has done so far.
    counted_step
        Of this process, whose operations are counted if it is of the warm-up; None for none.

    Attributes
    ----------
    windows
        When the measured steps of each epoch began and ended, by `time.monotonic`: on a GPU, when that did.

    >>> with recorder.step(epoch=1, window="measured") as step:    # doctest: +SKIP
    ...     with recorder.phase("forward"):
    ...         loss = model(images)
    ...     step.add(len(images), loss)
    """

    def __init__(
        self,
        rank: int,
        device: torch.device,
        capture: Capture,
        devices: Sequence[torch.device] = (),
        clock: Clock | None = None,
        reset_peaks: bool = True,
        counted_step: int | None = None,
    ):
        self.rank, self.capture = rank, capture
        self.devices, self.reset_peaks = devices or (device,), reset_peaks
        self._counted_step, self._counter = counted_step, None
        self.clock = clock or clock_for(device, devices)
        self.rows: list[dict[str, Any]] = []
        self.windows: list[list[float]] = []
        self._window_epoch: int | None = None  # of the last one
        self._pending: list[_Step] = []
        self._current: _Step | None = None
        self._window: str | None = None
        self._count = 0
        self._start_s = 0.0  # of the latest step that was settled
        self._start: Any = None  # the mark of that moment

    @contextmanager
    def step(self, epoch: int, window: str) -> Iterator["_Step"]:
        """Time the block as one optimizer step; a trace shows it and its phases unless it is of the warm-up."""
        with self.capture.range("warmup" if window == "warmup" else "step"):
            step = self.begin(epoch, window)
            yield step
            step.end = self.clock.mark()
        self.end()

    def begin(self, epoch: int, window: str, start: Any = None) -> "_Step":
        """Begin a step now, or at a mark made before; no trace shows it."""
        if self.reset_peaks and self.devices[0].type == "cuda" and (window != self._window or not self._pending):
            self._note_peaks()
        self._window = window
        self._count += 1
        step = self._current = _Step(self._count, epoch, window)
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

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as one phase of the current step; the times of equal phases add up."""
        in_trace = nullcontext() if self._current.window == "warmup" else self.capture.range(name)
        with in_trace:
            start = self.clock.mark()
            yield
            self._current.phases.append((name, start, self.clock.mark()))

    def settle(self) -> list[dict[str, Any]]:
        """Read the marks and losses of the steps since the last call, and return their rows.

        Raises
        ------
        Diverged
            If a loss is not finite. The rows are kept all the same.
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
            fresh.append(step.row(self.rank, self.clock, self._start_s))
            if now and step.window == "measured":
                self._extend_windows(step, *now)
        self._pending.clear()
        self.clock.forget(self._start)
        self.rows += fresh
        for row in fresh:
            if row["loss"] is not None and not math.isfinite(row["loss"]):
                raise Diverged(row["loss"], row["step"])
        return fresh

    def _extend_windows(self, step: "_Step", now: Any, now_s: float) -> None:
        start_s, end_s = (now_s - self.clock.seconds(mark, now) for mark in (step.start, step.end))
        if step.epoch != self._window_epoch:
            self.windows.append([start_s, end_s])
        self.windows[-1][1], self._window_epoch = end_s, step.epoch

    def continue_from(self, written: str) -> None:
        """Continue after the steps of an earlier attempt, as `write` left them.

        Numbering goes on, and the next step starts where the last one ended: time between attempts does not count.
        """
        self.rows = list(csv.DictReader(io.StringIO(written)))
        self._count = len(self.rows)
        if self._counted_step is not None:
            self._counted_step += self._count
        if self.rows:
            self._start_s = float(self.rows[-1]["start_s"]) + float(self.rows[-1]["duration_s"])

    def write(self, path: Path) -> None:
        """Write the settled steps as CSV."""
        write_csv(path, STEP_COLUMNS, self.rows)


class _Step:
    """Marks of one step, not yet read."""

    def __init__(self, number: int, epoch: int, window: str):
        self.number, self.epoch, self.window = number, epoch, window
        self.start = self.end = None
        self.phases: list[tuple[str, Any, Any]] = []
        self.counts: dict[str, int | None] = {"samples": 0, "tokens": None, "padded_tokens": None}
        self.losses: list[tuple[float, torch.Tensor]] = []
        self.rewards: list[tuple[float, torch.Tensor, torch.Tensor]] = []
        self.peaks: PeakMemory | None = None

    def add(
        self,
        samples: int,
        loss: torch.Tensor,
        weight: float = 1.0,
        tokens: int | None = None,
        padded_tokens: int | None = None,
        rewards: Sequence[torch.Tensor] = (),
    ) -> None:
        """Add one batch to the step.

        Parameters
        ----------
        loss
            Mean loss of the batch; any further dimensions are averaged. It stays on its device until `settle`.
        weight
            Of this batch in the loss of the step.
        tokens, padded_tokens
            Of a language model: the tokens computed, without and with padding.
        rewards
            Of DPO: those of the chosen and of the rejected answers, a number per pair each. They stay on their device
            as the loss does.
        """
        self.losses.append((weight, loss.detach()))
        if rewards:
            self.rewards.append((weight, *(reward.detach() for reward in rewards)))
        for name, count in (("samples", samples), ("tokens", tokens), ("padded_tokens", padded_tokens)):
            if count is not None:
                self.counts[name] = (self.counts[name] or 0) + count

    def row(self, rank: int, clock: Any, start_s: float) -> dict[str, Any]:
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
            "loss": _mean(self.losses) if self.losses else None,
            **dict(zip(REWARDS, self._rewards(), strict=True)),
            "peak_memory_bytes": self.peaks.allocated,
            "peak_reserved_bytes": self.peaks.reserved,
        }

    def _rewards(self) -> list[float | None]:
        """Mean reward of the chosen and of the rejected answers, and the share of pairs whose chosen one has more."""
        if not self.rewards:
            return [None] * len(REWARDS)
        chosen, rejected = ([(weight, pair[side]) for weight, *pair in self.rewards] for side in (0, 1))
        return [_mean(chosen), _mean(rejected), _mean([(weight, a > b) for weight, a, b in self.rewards])]


def _mean(parts: Sequence[tuple[float, torch.Tensor]]) -> float:
    """Weighted mean of the means of tensors."""
    weighted = sum(weight * values.double().mean().item() for weight, values in parts)
    return weighted / sum(weight for weight, _ in parts)
