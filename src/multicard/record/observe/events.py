"""Events of the step that is open, from which its phases follow; see `phases`."""

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from multicard.core.layout import EPOCH_COLUMNS
from multicard.record.clock import Clock, Mark
from multicard.record.compilation import has_compiled
from multicard.record.observe.phases import (
    DATA,
    EVALUATED,
    EVALUATION,
    FORWARD,
    INFERRED,
    NO_PHASE,
    TRANSFER,
    PhaseEvent,
    marked_phases,
    phases_of,
)
from multicard.record.observe.process import is_capturing
from multicard.record.observe.ranges import Ranges
from multicard.record.recorder import Step

VALUES_OF_EPOCHS = set(EPOCH_COLUMNS) - {"epoch"}


class StepEvents:
    """Takes the events of a step that is not recorded, and ignores them; `RecordedEvents` keeps them.

    So `Observer` reports every event without asking whether there is a recording.
    """

    @property
    def is_evaluating(self) -> bool:
        """True while an evaluation is open."""
        return False

    def note(self, event: str | None) -> None:
        """Note that a phase begins, and the one before ends; or that one ends: `NO_PHASE` or `PASSED`."""

    def note_batch(self) -> None:
        """Note that a loader gave a batch: its transfer begins, or the forward pass does."""

    def note_request(self, event: str, begins_draws: bool = False) -> None:
        """Note that a loader is asked for a batch, and was for iterators since the event before for the same purpose.

        `begins_draws`: it is the first batch of the step; `retract_draws` takes all from here on for a test.
        """

    def note_evaluation(self) -> None:
        """Note that a batch of an evaluation is asked for."""

    def note_evaluated(self) -> None:
        """Note that a loader of an evaluation is exhausted."""

    def iterator_asked(self, begins_pass: bool) -> None:
        """Note that a loader is asked for an iterator, maybe to begin a pass of the loop."""

    def iterator_given(self) -> None:
        """Note that the loader gave it."""

    def begin_pass(self, epoch: int) -> None:
        """Begin the open step only now, with a pass over the data: what came since the last step is in none."""

    def end_pass(self) -> None:
        """Give all since the last step to that one: the loader of the loop is exhausted."""

    def retract_draws(self) -> None:
        """Take what was noted since the first batch of the step was asked for as an evaluation."""

    def keep_losses(self, losses: object) -> None:
        """Keep what a backward pass begins from, if it is to be looked at."""

    def mark(self, event: str | None) -> None:
        """Note that the script marks the begin of a phase, or its end (`NO_PHASE`)."""

    def count(self, counts: Mapping[str, int | None]) -> None:
        """Keep what the script says is in the step."""


NOT_RECORDED = StepEvents()


class Request:
    """When a loader was asked for an iterator, and when it gave it: None as long as it did not."""

    __slots__ = ("asked", "given")

    def __init__(self, asked: Mark) -> None:
        self.asked = asked
        self.given: Mark | None = None


class BeforePass:
    """What the open step was before a pass over the data began."""

    __slots__ = ("epoch", "events", "start")

    def __init__(self, step: Step, events: list[PhaseEvent]) -> None:
        self.start = step.start
        self.epoch = step.epoch
        self.events = list(events)


class RecordedEvents(StepEvents):
    """Events of one recorded step after another, on the thread that trains.

    Phases follow each other without overlap: what lies inside an update but belongs to another phase, such as the
    passes of a closure, is of that one. `forward` is what lies before a backward pass since a batch, a backward pass or
    another optimizer's update; without a loader it is unknown. On a GPU the first part of it is `transfer`: until the
    script calls a module that has parameters, unless torch.compile is used or the batch is not the one computed on.

    `settle_pass` is called between two passes, where time for reading the clock's marks is in no step; `pass_begins`
    when the loop draws the first batch of a pass.
    """

    def __init__(
        self,
        clock: Clock,
        ranges: Ranges,
        on_gpu: bool,
        settle_pass: Callable[[], None],
        pass_begins: Callable[[], None],
    ):
        self.marks_phases = False  # the script does
        self.counts_itself = False  # the script says what is in its steps
        self.losses: object = None  # what the last measured step's latest backward pass began from
        self.epochs: list[dict[str, Any]] = []  # rows of epochs.csv
        self._mark = clock.mark
        self._ranges = ranges
        self._on_gpu = on_gpu
        self._settle_pass = settle_pass
        self._pass_begins = pass_begins
        # Ends the transfer of a batch; None where there is none.
        self._first_call = FirstCall(lambda: self.note(FORWARD)) if on_gpu else None
        self._unsettled: list[tuple[Step, list[PhaseEvent]]] = []  # whose phases are not worked out, or not for good
        # Stands for the open step where there is none. It is in no record, so what it is given is dropped.
        self._no_step = Step(0, 1, "warmup", start=None)
        self._step = self._no_step
        self._last = self._no_step  # the step that has ended last
        self._keeps_losses = False
        self._is_within_pass = True  # else a pass may end before the step begins, and a test may follow
        self._begin_events()

    def _begin_events(self) -> None:
        self._events: list[PhaseEvent] = []
        self._requests: list[Request] = []
        self._is_range_open_early = False  # the range of a step that begins with a pass is open before it begins
        self._first_draw = 0  # number of events before the first batch of the step was asked for
        self._before_pass: BeforePass | None = None

    def begin(self, step: Step, is_within_pass: bool, keeps_losses: bool) -> None:
        """Begin a step; `keeps_losses`: it is the one whose losses are looked at."""
        self._step = step
        self._keeps_losses = keeps_losses
        self._is_within_pass = is_within_pass
        # Another thread may have added events since the last step ended.
        self._events.clear()
        self._requests.clear()
        self._unsettled.append((step, self._events))
        if is_within_pass and self._ranges.are_shown:
            self._ranges.show_step(step.window)

    def end(self) -> Step:
        """End the open step, and return it."""
        self.note(NO_PHASE)
        self._step.end = self._events[-1][1]
        self._ranges.close()
        self._last, self._step = self._step, self._no_step
        self._begin_events()
        return self._last

    def find_phases(self) -> int:
        """Work out the phases of the steps that have ended and were not settled; return how many these are.

        Also called on another thread than the one that trains.
        """
        ended = [(step, events) for step, events in self._unsettled if step.end is not None]
        has_transfers = self._first_call is not None
        for step, events in ended:
            step.phases = marked_phases(events) if self.marks_phases else phases_of(events, has_transfers)
        return len(ended)

    def settle_phases(self, asks_ahead: bool) -> None:
        """Work out the phases of the steps that have ended for good.

        `asks_ahead`: the script asks for batches before it uses the last; then it may have moved a batch before it
        asked for the next one, and its transfers are not seen.
        """
        if asks_ahead:
            self._first_call = None
        del self._unsettled[: self.find_phases()]

    # Phases.

    def note(self, event: str | None) -> None:
        """Append an event of now, unless nothing can be timed, or the script marks its phases."""
        if self._first_call is not None:
            self._first_call.stop()
        if self._on_gpu and is_capturing():  # nothing can be timed in a CUDA graph
            return
        if self.marks_phases and event in INFERRED:
            if self._events and self._events[-1][0] == DATA:
                self._add(NO_PHASE)
            return
        self._add(event)

    def _add(self, event: str | None) -> None:
        self._events.append((event, self._mark()))
        self._requests.clear()
        if self._is_range_open_early and event == DATA:
            self._is_range_open_early = False
        elif self._ranges.are_shown:
            self._ranges.show(self._step.window, event, self._is_within_pass)

    def note_batch(self) -> None:
        """Begin the transfer of the batch, until a module is called, or the forward pass."""
        self._is_within_pass = True
        if self._first_call is None or self.marks_phases or has_compiled():
            self.note(FORWARD)
        else:
            self.note(TRANSFER)
            self._first_call.wait()

    def mark(self, event: str | None) -> None:
        """Append an event of now; from here on, phases are not inferred."""
        self.marks_phases = True
        self._add(event)

    # Loaders.

    def iterator_asked(self, begins_pass: bool) -> None:
        """Keep the moment until a batch is asked for, which shows for what the iterator was."""
        if self._on_gpu and is_capturing():
            return
        if begins_pass:
            self._settle_pass()
        self._requests.append(Request(self._mark()))
        if self._ranges.are_shown and begins_pass:
            self._ranges.close()
            self._ranges.show(self._step.window, DATA, is_within_pass=True)
            self._is_range_open_early = True

    def iterator_given(self) -> None:
        """Keep the moment, likewise."""
        if self._requests:
            self._requests[-1].given = self._mark()

    def note_request(self, event: str, begins_draws: bool = False) -> None:
        """Append what the iterators since the last event were for, and the request for the batch."""
        if begins_draws:
            self._first_draw = len(self._events)
        for request in self._requests:
            self._events.append((event, request.asked))
            if request.given is not None and event == DATA:
                self._events.append((NO_PHASE, request.given))
        self.note(event)

    def begin_pass(self, epoch: int) -> None:
        """Drop the events so far, and start the step where its iterator was asked for."""
        step = self._step
        self._is_within_pass = True
        self._before_pass = BeforePass(step, self._events)
        if not self._requests:
            self._settle_pass()
        self._pass_begins()
        if not self._is_range_open_early:
            self._ranges.close()
        self._events.clear()
        step.epoch = epoch
        step.start = self._requests[0].asked if self._requests else self._mark()

    def end_pass(self) -> None:
        """Move the events so far to the last step, unless it is written or does not end where this one starts."""
        last = self._last
        is_settled = last.settled is not None  # and so may be written already
        # Between steps that are apart lies work of ours, or the end of a pass.
        if not self._events or is_settled or last.end is not self._step.start:
            return
        _, events_of_last = self._unsettled[-2]
        events_of_last += self._events
        self._step.start = last.end = self._events[-1][1]
        self._events.clear()

    # Evaluations.

    @property
    def is_evaluating(self) -> bool:
        """True while an evaluation is open."""
        return bool(self._events) and self._events[-1][0] == EVALUATION

    def note_evaluation(self) -> None:
        """Begin an evaluation, or go on with it."""
        if not self.is_evaluating:
            self.note_request(EVALUATION)

    def note_evaluated(self) -> None:
        """End an evaluation, if one is open."""
        if self.is_evaluating:
            self.note(EVALUATED)

    def retract_draws(self) -> None:
        """Replace the events since the first batch of the step by an evaluation, and undo `begin_pass`."""
        tested = self._events[self._first_draw :]
        if tested:
            evaluation: list[PhaseEvent] = [(EVALUATION, tested[0][1])]
            if (
                tested[-1][0] is NO_PHASE
            ):  # else the pass was broken off, and the evaluation goes on until the next event
                evaluation.append((EVALUATED, tested[-1][1]))
            self._events[self._first_draw :] = evaluation
            self._undo_pass()
        self._first_draw = 0
        self._before_pass = None

    def _undo_pass(self) -> None:
        before = self._before_pass
        if before is not None:
            self._step.start = before.start
            self._step.epoch = before.epoch
            self._events[:0] = before.events

    # What the script says.

    def keep_losses(self, losses: object) -> None:
        """Keep them in the last measured step."""
        if self._keeps_losses:
            self.losses = losses

    def count(self, counts: Mapping[str, int | None]) -> None:
        """Count samples and tokens of the step as the script does."""
        if any(count is not None for count in counts.values()):
            self.counts_itself = True
            self._step.counts |= counts

    def log(self, values: Mapping[str, Any], weight: float, epoch: int, has_begun_work: bool) -> None:
        """Keep values of the open step, or of the one before if it has not begun its work; or of an epoch.

        Values of a step that is not recorded, such as one that is captured as a CUDA graph, are dropped.
        """
        if not values.keys().isdisjoint(VALUES_OF_EPOCHS):
            self.epochs.append({"epoch": epoch, **values})
            return
        step = self._step if has_begun_work else self._last
        for name in step.values.keys() & values.keys():
            value = values[name]
            step.values[name].append((weight, value if callable(value) else torch.as_tensor(value).detach()))
        if step.settled is not None:  # the last one of a window
            step.settled |= step.means()


class FirstCall:
    """Calls `callback` when this thread next calls a module that has parameters, if it is waited for.

    The hook is there only so long, since with it every call of a module would cost more. Where torch.compile is used it
    must not be: that would compile the hook, too.
    """

    def __init__(self, callback: Callable[[], None]):
        self._callback = callback
        self._thread = get_ident()
        self._handle: RemovableHandle | None = None  # while the hook is there

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
        # Augmentation and losses are modules as well, but have no parameters.
        if get_ident() == self._thread and next(module.parameters(), None) is not None:
            self.stop()
            self._callback()
