"""Times a tuning recipe from outside: feeds it batches, and watches its model, loss and optimizer."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn

from multicard.core.errors import UserError
from multicard.record.capture import Capture
from multicard.record.others import OthersMeter
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.record.rank import log_progress
from multicard.record.recorder import Recorder
from multicard.workloads.llm.model_state import ModelState, count
from multicard.workloads.llm.parameters import LlmParameters


@dataclass(frozen=True)
class Contents:
    """What a batch holds: samples, tokens without and with padding, and the tokens that its loss averages over."""

    samples: int
    tokens: int
    padded_tokens: int
    weight: float


class Observer:
    """Runs the windows of a job inside a recipe that knows nothing of them.

    A back end trains on the batches of `feed`, which opens and ends the steps; `watch` then sees the phases. A step
    lasts from the request for its first batch to the request for the next step's, so nothing is left out: phases are
    `data` (until a batch is there), `transfer` (until the model begins, so with the making of masks), `forward` (until
    the backward pass begins, so with the loss), `backward`, and `optimizer` (from the last backward pass to the end of
    the update, so with what ranks exchange about it). What comes after, such as logging, is in no phase.

    Attributes
    ----------
    held
        Bytes that the model and its optimizer hold on this rank, after the first update.
    attention
        Function that the back end computes attention with, and whether it is compiled; None until there is a batch.
    saved
        Seconds that writing the weights took, by the wall clock.
    """

    def __init__(
        self,
        p: LlmParameters,
        rank: int,
        recorder: Recorder,
        capture: Capture,
        others: OthersMeter | None = None,
    ):
        self.p, self.rank, self.recorder, self.capture = p, rank, recorder, capture
        self.others = others or OthersMeter(None)
        self.held: ModelState | None = None
        self.save_time_s: float | None = None
        self.attention: dict[str, Any] | None = None
        self._open: dict[str, AbstractContextManager[Any]] = {}  # the window, the step and the phase that are open
        self._phase: str | None = None
        self._step: Any = None
        self._contents: Contents | None = None
        self._last_batch = False

    def feed(
        self, loader: Iterable[Any], contents: Callable[[Any], Contents], prepare: Callable[[Any], None]
    ) -> Iterator[Any]:
        """Give the batches of all steps, passing over the data as often as they need.

        `prepare` does to a batch what is no wait for data.
        """
        batches = self._passes(loader)
        for number in range(1, self.p.total_steps + 1):
            self._end_step()
            self._begin_step(number)
            for part in range(1, self.p.gradient_accumulation_steps + 1):
                self._enter("data")
                self._step.epoch, batch = next(batches)
                self._contents = contents(batch)
                if not self._contents.weight:
                    raise UserError(
                        f"sequence_length: {self.p.sequence_length} cuts off every answer of a batch of "
                        f"{self.p.dataset}"
                    )
                self._last_batch = part == self.p.gradient_accumulation_steps
                self._enter("transfer")
                prepare(batch)
                yield batch
        self._end_step()
        self._close("window")
        self.recorder.settle()

    @contextmanager
    def watch(self, model: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """See the phases of a recipe that calls these, while the block runs."""
        plain_backward = torch.Tensor.backward

        @wraps(plain_backward)
        def backward(*arguments: Any, **options: Any) -> None:
            self._enter("backward")
            plain_backward(*arguments, **options)
            self._leave()
            if self._last_batch:
                self._enter("optimizer")

        def begin_forward(*_: Any) -> None:
            if self._phase != "forward":  # DPO asks the model twice
                self._enter("forward")

        def note_loss(_module: nn.Module, _inputs: Any, found: Any) -> None:
            c = self._contents
            # DPO's loss comes with the rewards of the chosen and of the rejected answers.
            value, *rewards = found if isinstance(found, tuple) else (found,)
            self._step.add(c.samples, value, c.weight, c.tokens, c.padded_tokens, rewards)

        def end_update(*_: Any) -> None:
            if self.held is None:
                self.held = count(model, optimizer)
            self._leave()

        hooks = [
            # Before those of FSDP, whose gathering of weights belongs to the forward pass.
            model.register_forward_pre_hook(begin_forward, prepend=True),
            loss.register_forward_hook(note_loss),
            optimizer.register_step_post_hook(end_update),
        ]
        torch.Tensor.backward = backward
        try:
            yield
        finally:
            torch.Tensor.backward = plain_backward
            for hook in hooks:
                hook.remove()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time the writing of weights."""
        started = time.perf_counter()
        with self.capture.range("checkpoint"):
            yield
        self.save_time_s = time.perf_counter() - started

    def _passes(self, loader: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Batches without end, each with the number of its pass over the data."""
        sampler = getattr(loader, "sampler", None)
        for epoch in itertools.count(1):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch - 1)
            for batch in loader:
                yield epoch, batch

    def _begin_step(self, number: int) -> None:
        p = self.p
        measured_end = p.warmup_steps + p.steps
        window = "measured" if p.warmup_steps < number <= measured_end else "warmup"
        if number > measured_end + LEAST_SETTLING:
            window = "profiled"
        if number == p.warmup_steps:  # the last step of the warm-up makes up for the time that this takes
            self.others.start()
        if number == measured_end + 1:
            self.recorder.settle()
            self.others.stop()
            self._enter_context("window", self.capture.window())
        if self.rank == 0 and number in (p.warmup_steps + 1, p.warmup_steps + p.steps // 2):
            log_progress(f"step {number} of {p.total_steps}")
        self._step = self._enter_context("step", self.recorder.step(1, window))

    def _end_step(self) -> None:
        self._leave()
        self._close("step")

    def _enter(self, phase: str) -> None:
        self._leave()
        self._phase = phase
        self._enter_context("phase", self.recorder.phase(phase))

    def _leave(self) -> None:
        self._phase = None
        self._close("phase")

    def _enter_context(self, name: str, context: AbstractContextManager[Any]) -> Any:
        self._open[name] = context
        return context.__enter__()

    def _close(self, name: str) -> None:
        context = self._open.pop(name, None)
        if context:
            context.__exit__(None, None, None)
