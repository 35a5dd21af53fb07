"""Records the steps that the observer tells of, runs their windows, and ends the script in order."""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from multicard.core.layout import EPOCH_COLUMNS, JOB, MADE, PROGRESS, STEPS, rank_file
from multicard.core.text import counted
from multicard.record.capture import Capture, RankLeft
from multicard.record.compilation import has_compiled
from multicard.record.observe.batches import asks_ahead
from multicard.record.observe.observer import Observer
from multicard.record.observe.phases import (
    DATA,
    EVALUATION,
    FORWARD,
    GUESSED,
    LEFT,
    TESTED,
    TRANSFER,
    Event,
    marked_phases,
    phases_of,
)
from multicard.record.observe.plan import Pace, Plan, pace_of, place
from multicard.record.observe.process import before_time_limit, devices_of, is_capturing, make_barrier, shared_number
from multicard.record.observe.ranges import Ranges
from multicard.record.observe.ranks import exchanges, rank_of_process
from multicard.record.profiled_window import ProfiledWindow
from multicard.record.recorder import COUNTED_STEP, Diverged, Recorder, first_not_finite

OF_EPOCHS = set(EPOCH_COLUMNS) - {"epoch"}


class Recording:
    """Of one rank, from its first update on.

    Phases follow each other without overlap: what lies inside an update but belongs to another phase, such as the
    passes of a closure, is of that one. `forward` is what lies before a backward pass since a batch, a backward pass or
    another optimizer's update; without a loader it is unknown. On a GPU the first part of it is `transfer`: until the
    script calls a module that has parameters, unless torch.compile is used or the batch is not the one computed on.

    `optimizer`: the lead one; None where the script marks its steps. `training_steps`: those before the profiled
    window, if the script states them: then that lies in a pass of its own.
    """

    def __init__(self, job: dict[str, Any], observer: Observer, optimizer: Any, training_steps: int | None):
        self.stated, self.scratch, self.observer = job["observe"], Path(job["scratch"]), observer
        self.rank = rank_of_process()
        self.path = self.scratch / rank_file("rank.json", self.rank)  # of its record
        self.devices = devices_of(optimizer, self.stated)
        self.barrier = make_barrier()
        self.capture = Capture(job["profiler"], self.scratch, self.rank, self.devices, self.barrier)
        of_user = self.stated["is_user_program"]
        # An update comes before the first step of a user's script, but not of a program that states its training.
        counted = min(COUNTED_STEP, self.stated["warmup_steps"]) if of_user else COUNTED_STEP
        # A user's script may read the peaks of memory itself.
        self.recorder = Recorder(
            self.rank, self.devices, not of_user, counted if self.stated.get("count_operations") else None
        )
        self._mark = self.recorder.clock.mark
        self._on_gpu = self.devices[0].type == "cuda"
        self.training_steps, self.plan = training_steps, Plan(self.stated, training_steps)
        self._exchanges: dict[str, int] | None = None  # before the measured steps
        self.exchanged: bool | None = None  # in these, with other ranks; None where that cannot be told
        self.steps = 0  # that have ended
        self._made = shared_number(self.scratch / rank_file(MADE, self.rank))  # the same, for who ends this process
        self.is_complete = False
        self.timer = before_time_limit(self.scratch / JOB, job.get("time_limit_s"), self._write_ended)
        self.pace = Pace()
        self._step: Any = None
        self._start: Any = None  # mark of the end of the step before
        self._events: list[Event] = []  # of the step
        self._requests: list[Request] = []  # of the step
        self._is_shown_early = False  # whether the range of a step that begins with a pass is open already
        self._losses: Any = None  # what the last measured step's latest backward pass began from
        self._seen: list[tuple[Any, list[Event]]] = []  # steps, and their events, whose phases are not worked out
        self._arrival = FirstCall(lambda: self.note(FORWARD)) if self._on_gpu else None  # of a batch on the GPU
        self._window: AbstractContextManager[Any] | None = None
        self._ranges = Ranges(self.capture)
        self._is_within = True  # a pass: else one may end before the step begins, and a test may follow
        self._marks_phases = self.counts_itself = False  # whether the script does, or says what is in its steps
        self._last: Any = None  # step that has ended
        self.epochs: list[dict[str, Any]] = []  # rows of epochs.csv
        self.replayed: int | None = None  # step from which on each is that one again; see `graphed`

    # Phases.

    def note(self, event: str | None) -> None:
        """A phase begins, and the one before ends; or that one ends: `LEFT` or `PASSED`."""
        if self._arrival is not None:
            self._arrival.stop()
        if self._step is None or (self._on_gpu and is_capturing()):
            return
        if self._marks_phases and event in GUESSED:
            if self._events and self._events[-1][0] == DATA:
                self._add_event(LEFT)
            return
        self._add_event(event)

    def mark(self, event: str | None) -> None:
        """The script says that a phase begins, or ends (`LEFT`)."""
        self._marks_phases = True
        if self._step is not None:
            self._add_event(event)

    def _add_event(self, event: str | None) -> None:
        self._events.append((event, self._mark()))
        self._requests.clear()
        if self._is_shown_early and event == DATA:
            self._is_shown_early = False
        elif self._window is not None:
            self._ranges.show(self._step.window, event, self._is_within)

    def count(self, counts: Mapping[str, int | None]) -> None:
        """The script says what is in the step."""
        if any(each is not None for each in counts.values()):
            self.counts_itself = True
            if self._step is not None:
                self._step.counts |= counts

    def log(self, values: Mapping[str, Any], weight: float, epoch: int, is_begun: bool) -> None:
        """Keep values of the step that is open, or of the one before if it has not begun its work; or of an epoch."""
        if not values.keys().isdisjoint(OF_EPOCHS):
            self.epochs.append({"epoch": epoch, **values})
            return
        step = self._step if is_begun else self._last
        if step is None:  # of what came before the first step
            return
        for name in step.values.keys() & values.keys():
            value = values[name]
            step.values[name].append((weight, value if callable(value) else torch.as_tensor(value).detach()))
        if step.settled is not None:  # the last one of a window
            step.settled |= step.means()

    def note_batch(self) -> None:
        """A loader gave a batch: its transfer begins, or the forward pass does."""
        self._is_within = True
        if self._arrival is None or self._marks_phases or has_compiled():
            self.note(FORWARD)
        else:
            self.note(TRANSFER)
            self._arrival.wait()

    @property
    def events(self) -> int:
        """Number of events of the step so far."""
        return len(self._events)

    def iterator_asked(self, begins_pass: bool) -> None:
        """A loader is asked for an iterator, maybe to begin a pass: this is of what a batch is drawn for next."""
        if self._step is None or (self._on_gpu and is_capturing()):
            return
        if begins_pass:
            self._settle_pass()
        self._requests.append(Request(self._mark()))
        if self._window is not None and begins_pass:
            self._ranges.close()
            self._ranges.show(self._step.window, DATA, is_within=True)
            self._is_shown_early = True

    def iterator_given(self) -> None:
        """The loader gave it."""
        if self._requests:
            self._requests[-1].given = self._mark()

    def note_request(self, event: str) -> None:
        """A loader is asked for a batch, and was for iterators since the event before, for the same purpose."""
        for request in self._requests:
            self._events.append((event, request.asked))
            if request.given is not None and event == DATA:
                self._events.append((LEFT, request.given))
        self.note(event)

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation is open."""
        return bool(self._events) and self._events[-1][0] == EVALUATION

    def note_evaluation(self, event: str) -> None:
        """An evaluation begins or goes on (`EVALUATION`), or ends if one is open (`TESTED`)."""
        if event == TESTED and self.is_evaluating:
            self.note(TESTED)
        elif event == EVALUATION and not self.is_evaluating:
            self.note_request(EVALUATION)

    def retract(self, number: int, before_pass: tuple[Any, int, list[Event]] | None) -> None:
        """Take the events of the step from that number on for an evaluation; `before_pass`: as `begin_pass` gave it."""
        if self._step is None or not (tested := self._events[number:]):
            return
        ended = [(TESTED, tested[-1][1])] if tested[-1][0] is LEFT else []  # else the pass was broken off
        self._events[number:] = [(EVALUATION, tested[0][1]), *ended]
        if before_pass is not None:
            self._step.start, self._step.epoch, events = before_pass
            self._events[:0] = events

    # Steps and passes.

    def begin_step(self) -> None:
        """Begin the step after the last one, and what its window needs."""
        step = self.steps + 1
        if self._prepare(step):
            self._start = None  # work of the profiler, or of ours, is in no step
        window = self.plan.window(step)
        self._step = self.recorder.begin(self.observer.epoch, window, self._start)
        self._start, self._events = self._step.start, []
        self._requests.clear()
        self._is_shown_early = False
        self._seen.append((self._step, self._events))
        length = self.observer.loader.length if self.observer.loader else None
        self._is_within = length is None or self.observer.batches_in_pass < length
        if self._window is not None and self._is_within:
            self._ranges.show_step(window)

    def end_step(self) -> None:
        """End the current step; after the last one, close the profiled window."""
        self.note(LEFT)
        self._start = self._step.end = self._events[-1][1]
        self._ranges.close()
        self.recorder.end()
        self._last, self._step = self._step, None
        self.steps += 1
        self._made[0] = self.steps
        if self.steps < self.plan.steps:
            return
        if self._window is not None:
            self._window.__exit__(None, None, None)
            self._window = None
            self.is_complete = True
            if self.capture.problem:
                print(f"{PROGRESS}  no trace of rank {self.rank}: {self.capture.problem}", file=sys.stderr, flush=True)
        elif not self.plan.is_profiled:
            self._end_measured()
            self.is_complete = True

    def abandon_window(self) -> None:
        """Stop the profiler, if it records, without a trace: at the end of a process it would be in the way."""
        if self._window is not None:
            with suppress(Exception):
                self._window.__exit__(RankLeft, RankLeft(), None)

    @property
    def has_measured(self) -> bool:
        """Whether all measured steps have ended."""
        return self.steps >= self.plan.measured_end

    def end_pass(self) -> None:
        """The loader of the loop is exhausted: all since the last step is of that one, such as an evaluation."""
        last = self._last
        if self._step is None or last is None or not self._events:
            return
        # Steps that were settled are written; between steps that are apart lies work of ours, or the end of a pass.
        if last.settled is not None or last.end is not self._step.start:
            return
        (_, events), _ = self._seen[-2:]
        events += self._events
        self._step.start = last.end = self._events[-1][1]
        self._events.clear()

    def keep_loss(self, roots: Any) -> None:
        """A backward pass begins from these tensors: losses, which are looked at once the measured steps have ended."""
        if self.steps + 1 == self.plan.measured_end and self._step is not None:
            self._losses = roots

    def settle(self) -> None:
        """Read the marks of the steps that have ended."""
        if asks_ahead(self.observer.passes):  # it may have moved the batch before it asked for the next one
            self._arrival = None
        del self._seen[: self._find_phases()]
        self.recorder.settle()

    def _find_phases(self) -> int:
        """Work out the phases of the steps that have ended and were not settled; return how many these are."""
        ended = [(step, events) for step, events in self._seen if step.end is not None]
        for step, events in ended:
            has_transfers = self._arrival is not None
            step.phases = marked_phases(events) if self._marks_phases else phases_of(events, has_transfers)
        return len(ended)

    def begin_pass(self) -> tuple[Any, int, list[Event]] | None:
        """A pass over the data begins: the step that is open begins only now; give what that has changed."""
        if self._step is None:
            return None
        self._is_within = True
        before = self._step.start, self._step.epoch, list(self._events)
        if not self._requests:
            self._settle_pass()
        if self.training_steps is not None and self.steps < self.plan.measured_end:
            self._log(f"epoch {self.observer.epoch}, step {self.steps + 1} of {self.training_steps}")
        if not self._is_shown_early:
            self._ranges.close()
        self._events.clear()
        self._step.epoch = self.observer.epoch
        self._step.start = self._requests[0].asked if self._requests else self._mark()
        return before

    def _settle_pass(self) -> None:
        """Read the marks of the pass before: a long training has more steps than such should be kept for."""
        if self.training_steps is not None and self._window is None:
            self.settle()

    def _prepare(self, step: int) -> bool:
        """Do what comes before a step, and say whether that took time."""
        plan = self.plan
        if step == max(1, plan.warmup):  # the last step of the warm-up makes up for the time that this takes
            self.recorder.clock.reserve(plan.measured)
        if step == plan.warmup + 1:
            self._log(f"measuring {counted(plan.measured, 'step')}")
            self._exchanges = exchanges()
        if step == plan.measured_end + 1:
            self._end_measured()
            window = plan.profiled = self._agree()
            before = window.warmup_steps + window.settling_steps
            self._log(f"profiling {counted(window.profiled_steps, 'step')}, after {before} more")
        if step != plan.opening:
            return step == plan.measured_end + 1
        self._window = self.capture.window()
        self._window.__enter__()
        return True

    def _end_measured(self) -> None:
        """Read what was measured, and leave it in case that the process does not live to leave its record."""
        after = exchanges()
        self.exchanged = None if None in (self._exchanges, after) else self._exchanges != after
        if loader := self.observer.loader:
            passes = [each for each in self.observer.passes if each.loader == loader]
            steps_in_pass = 0 if self.training_steps is not None else self.observer.steps_in_pass
            self.pace = pace_of(loader, passes, self.plan, steps_in_pass)
        losses, self._losses = self._losses, None
        self.settle()
        self.recorder.write(self.scratch / rank_file(STEPS, self.rank))
        if not self.observer.has_scaler and (loss := first_not_finite(losses)) is not None:
            raise Diverged(loss, self.plan.measured_end)

    def _write_ended(self) -> None:
        """Write the steps so far, on another thread than the one that trains."""
        self._find_phases()
        self.recorder.write_ended(self.scratch / rank_file(STEPS, self.rank))

    def _agree(self) -> ProfiledWindow:
        """Where the profiled window lies: on all ranks where it does on the first."""
        placed = place(self.pace, self.plan.least_profiled)
        if self.barrier is None:
            return placed
        return ProfiledWindow(*json.loads(self.barrier.gather("window", json.dumps(placed))[0]))

    def _log(self, text: str) -> None:
        if self.rank == 0:
            print(f"{PROGRESS}  {text}\n", end="", file=sys.stderr, flush=True)  # in one write: others print, too


@dataclass
class Request:
    """Marks of when a loader was asked for an iterator, and gave it; None where that is not known."""

    asked: Any
    given: Any = None


class FirstCall:
    """Tells when this thread next calls a module that has parameters, if it is waited for.

    The hook is there only so long, since with it every call of a module would cost more. Where torch.compile is used it
    must not be: that would compile the hook, too.
    """

    def __init__(self, tell: Callable[[], None]):
        self._tell, self._thread = tell, get_ident()
        self._handle: Any = None

    def wait(self) -> None:
        """Wait for the next call."""
        self.stop()
        self._handle = register_module_forward_pre_hook(self._called)

    def stop(self) -> None:
        """Wait no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        # Augmentation and losses are modules as well.
        if get_ident() == self._thread and next(module.parameters(), None) is not None:
            self.stop()
            self._tell()
