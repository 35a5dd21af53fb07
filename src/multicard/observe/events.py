"""Keep the events of the open step; `phases` infers its phases from them."""

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter, thread_time
from typing import Any

import torch

from multicard.core.layout import EPOCH_COLUMNS
from multicard.core.system import read_or_none
from multicard.core.values import Cell, Row
from multicard.observe.first_call import FirstCall
from multicard.observe.host_work import OpenWork, StepWork
from multicard.observe.phases import (
    BACKWARD,
    BACKWARD_WITHOUT_LOADER,
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
from multicard.observe.process import is_capturing
from multicard.observe.ranges import Ranges
from multicard.observe.record.clock import Clock, Mark
from multicard.observe.record.compilation import has_compiled
from multicard.observe.record.recorder import MEASURED, VALUES, Step, StepCounts, read_value
from multicard.observe.stack_samples import Place, StackSample

# Work of the host follows a step at once if the thread has used its CPU for less than the first of these since then,
# and less time than the second has passed: on a busy machine a thread may wait long for its CPU.
JUST_CPU_S = 0.01
JUST_S = 0.5
NOT_COUNTED = StepCounts()  # what a script states that leaves the counts to the observer
VALUES_OF_EPOCHS = set(EPOCH_COLUMNS) - {"epoch"}
VALUES_OF_STEPS = frozenset(VALUES)


class StepEvents:
    """Takes the events of a step that is not recorded, and ignores them. The subclass `RecordedEvents` keeps them.

    So `Observer` can report every event, whether a step is recorded or not.
    """

    may_capture = True  # False if the process computes on a CPU, where no CUDA graph is captured
    keeps_losses = False  # True if the losses of the open step will be checked
    losses: object = None  # the tensors that the latest backward pass began from, where they are kept

    @property
    def is_evaluating(self) -> bool:
        """True while an evaluation is open."""
        return False

    @property
    def is_untouched(self) -> bool:
        """True if nothing was noted yet in the open step."""
        return False

    def add_work(self, kind: str, function: str, seconds: float, exchanged: Iterable[Any]) -> None:
        """Note a call that has just ended: what the host did, and for how long; see `ObservedProcess.work_ends`."""

    def note(self, event: str | None) -> None:
        """Note an event of `phases`: the open phase ends and, unless the event is one of `ENDS`, another one begins.

        `DATA` and `EVALUATION` note that a loader is asked for a batch, to train on or for an evaluation. Iterators
        that were asked for since the last event were for the same purpose.
        """

    def note_batch(self) -> None:
        """Note that a loader gave a batch. Its transfer to the GPU begins or, without one, the forward pass."""

    def begin_draws(self) -> None:
        """Note that the first batch of the step is about to be asked for; see `retract_draws`."""

    def note_evaluation(self) -> None:
        """Note that a batch of an evaluation is asked for."""

    def note_evaluated(self) -> None:
        """Note that a loader of an evaluation is exhausted."""

    def iterator_asked(self, begins_pass: bool) -> None:
        """Note that a loader is asked for an iterator. `begins_pass`: this may begin a pass over the training data."""

    def iterator_given(self) -> None:
        """Note that the loader gave the iterator, or raised."""

    def begin_pass(self, epoch: int) -> None:
        """Note that a pass over the data begins, and that the open step begins with it.

        What came between the end of the last step and the begin of the pass is in no step.
        """

    def end_pass(self) -> None:
        """Note that the training data are exhausted. What came since the end of the last step becomes a part of it."""

    def retract_draws(self) -> None:
        """Replace what was noted since the step's first batch was asked for by an evaluation: it was a test."""

    def mark(self, event: str | None) -> None:
        """Note that the script marks the begin of a phase, or its end (`NO_PHASE`)."""

    def count(self, counts: StepCounts) -> None:
        """Keep the numbers of samples and tokens that the script states for the step."""


NOT_RECORDED = StepEvents()


class Request:
    """When a loader was asked for an iterator, and when it gave the iterator (None until then).

    `noted`: number of calls of the host and samples of its stack that the open step had before that.
    """

    __slots__ = ("asked", "given", "noted")

    def __init__(self, asked: Mark, noted: int) -> None:
        self.asked = asked
        self.noted = noted
        self.given: Mark | None = None


class BeforePass:
    """Start, epoch, events and work that the open step had before a pass over the data began."""

    __slots__ = ("epoch", "events", "noted", "start")

    def __init__(self, step: Step, events: list[PhaseEvent], noted: list[StepWork | StackSample]) -> None:
        self.start = step.start
        self.epoch = step.epoch
        self.events = list(events)
        self.noted = noted


class RecordedEvents(StepEvents):
    """Events of one recorded step after another, on the thread that trains.

    Phases follow each other without overlap. Another phase inside an update, such as the forward and backward passes of
    a closure, does not count as time of the update. The phase `forward` is the time before a backward pass, since the
    latest of these: a batch, another backward pass, another optimizer's update. Without a loader it is unknown.
    On a GPU the time from the batch until the script calls a module that has parameters is not `forward`, but
    `transfer`. There is no `transfer` where torch.compile is used, and none where the script asks for batches ahead,
    because the batch that the loader gives is not the one that the script then computes on. On a CPU nothing is
    transferred, so that this time is `forward`, too; only samples of the stack in it have the phase `transfer`, which
    tells lines that prepare a batch from those of the model.

    `settle_pass` is called between two passes, because the time for reading the clock's marks is in no step there.
    `pass_begins` is called when the loop asks for the first batch of a pass.
    """

    def __init__(
        self,
        clock: Clock,
        ranges: Ranges,
        work: OpenWork,
        on_gpu: bool,
        settle_pass: Callable[[], None],
        pass_begins: Callable[[], None],
    ):
        self.marks_phases = False  # True once the script marks a phase
        self.counts_itself = False  # True once the script states numbers of samples or tokens
        # The tensors from which the latest backward pass of the last measured step began.
        self.losses: object = None
        self._epochs: list[Mapping[str, Any]] = []  # rows of epochs.csv, whose tensors are not read yet
        self._mark = clock.mark
        self._ranges = ranges
        self._work = work  # what the host did in the open step
        self._on_gpu = self.may_capture = on_gpu
        self._settle_pass = settle_pass
        self._pass_begins = pass_begins
        # Ends the transfer of a batch when a module is called. None if the script asks for batches ahead.
        self._first_call: FirstCall | None = FirstCall(self._end_transfer)
        # Steps whose phases are not final yet, with their events; the open step is the last.
        self._unsettled: list[tuple[Step, list[PhaseEvent]]] = []
        # Takes the place of the open step while none is open. It is in no record, so what is added to it is dropped.
        self._no_step = Step(0, 1, "warmup", start=None)
        self._step = self._no_step
        self._last = self._no_step  # the latest step that has ended
        # When it had ended, by `perf_counter` and `thread_time`.
        self._ended_s = self._ended_cpu_s = 0.0
        # True if the transfer of a batch ends at the call of a module in the open step.
        self._awaits_call = False
        # False if the loader has given all batches of its pass, and the open step has drawn none. Then the pass may
        # end, and a test may follow, before the step's work begins.
        self._is_within_pass = True
        self._begin_events()

    def _begin_events(self) -> None:
        self._events: list[PhaseEvent] = []
        if self._work.noted:
            self._work.take()
        self._requests: list[Request] = []
        # True while a range of the step is open that began when its iterator was asked for, before the pass begins.
        self._is_range_open_early = False
        self._first_draw = 0  # number of events before the first batch of the step was asked for
        self._before_pass: BeforePass | None = None

    def begin(self, step: Step, is_within_pass: bool, keeps_losses: bool) -> None:
        """Begin a step.

        `is_within_pass`: False if the loader has given all batches of its pass. `keeps_losses`: True if the losses of
        this step will be checked.
        """
        self._step = step
        self.keeps_losses = keeps_losses
        # On a CPU only the samples of measured steps need it. By then, what torch.compile compiles has been compiled.
        may_wait = self._first_call is not None and not self.marks_phases and not has_compiled()
        self._awaits_call = may_wait and (self._on_gpu or step.window == MEASURED)
        self._is_within_pass = is_within_pass
        # Another thread may have added events since the last step ended.
        self._events.clear()
        if self._work.noted:
            self._work.take()
        self._requests.clear()
        self._unsettled.append((step, self._events))
        if is_within_pass and self._ranges.are_shown:
            self._ranges.show_step(step.window)

    def end(self, has_workers: bool) -> Step:
        """End the open step, and return it.

        `has_workers`: True if its loader has workers. Only then `is_untouched` is asked, when they stop.
        """
        self.note(NO_PHASE)
        self._step.end = self._events[-1][1]
        if self._work.noted:
            self._work.keep(self._step)
        if self._ranges.are_shown:
            self._ranges.close()
        self._last, self._step = self._step, self._no_step
        if self._before_pass is not None:
            self._work.keep_samples_before(self._last, self._before_pass.noted)
        self._begin_events()
        if has_workers:
            self._ended_s, self._ended_cpu_s = perf_counter(), thread_time()
        return self._last

    def find_phases(self) -> int:
        """Set the phases of the steps that have ended and are not settled; return the number of these steps.

        This is also called on another thread than the one that trains.
        """
        ended = [(step, events) for step, events in self._unsettled if step.end is not None]
        has_transfers = self._on_gpu and self._first_call is not None
        for step, events in ended:
            step.phases = marked_phases(events) if self.marks_phases else phases_of(events, has_transfers)
        return len(ended)

    def settle_phases(self, asks_ahead: bool) -> None:
        """Set the final phases of the steps that have ended, and drop their events.

        `asks_ahead`: the script asks for the next batch before it uses the last one. Then it may have moved the batch
        that it computes on before it asked for the next, so these steps and all later ones have no transfers.
        """
        if asks_ahead and self._first_call is not None:
            self._first_call.stop()
            self._first_call = None
            self._awaits_call = False
        del self._unsettled[: self.find_phases()]

    # Work of the host.

    def add_work(self, kind: str, function: str, seconds: float, exchanged: Iterable[Any]) -> None:
        """Keep the call with the open step, which may still turn out to be another one's."""
        if self._step is not self._no_step:
            latest = self._latest()
            event = latest[0] if latest else NO_PHASE
            if event == TRANSFER and not self._on_gpu:
                event = FORWARD
            self._work.add(kind, function, event, seconds, exchanged)

    def add_sample(self, find_place: Callable[[], Place]) -> StackSample:
        """Find where this thread is, and keep that with the open step, if it is a measured one; return the sample.

        Called on another thread than the one that trains. The place is not known if that thread went on to another
        phase while it was looked for.
        """
        latest = self._latest()
        place = find_place()
        sample = StackSample(place if self._latest() is latest else None, latest[0] if latest else NO_PHASE)
        if self._step.window == MEASURED:
            self._work.add_sample(sample)
        return sample

    def _latest(self) -> PhaseEvent | None:
        return self._events[-1] if self._events else None

    # Phases.

    def note(self, event: str | None, is_marked: bool = False) -> None:
        """Append an event at this moment.

        `is_marked`: the script marks the event. Else none is appended while a CUDA graph is captured, in which nothing
        can be timed. If the script marks its phases, no event that is inferred is, either; it only ends an open `DATA`
        phase.
        """
        # This runs four times for each batch, so it calls little, and looks at most things only if there are any.
        if (self.marks_phases or self._on_gpu) and not is_marked and self._drops(event):
            return
        if self._requests:
            if not is_marked:
                self._note_requests(event)
            self._requests.clear()
        if self._work.noted:
            self._settle_work(event)
        self._events.append((event, self._mark()))
        if self._ranges.are_shown:
            self._show(event)

    def _drops(self, event: str | None) -> bool:
        """Return True if an event that the script does not mark is none."""
        if self._on_gpu and is_capturing():
            return True
        is_inferred = self.marks_phases and event in INFERRED
        if is_inferred and self._is_in(DATA):
            self.note(NO_PHASE)
        return is_inferred

    def _is_in(self, event: str) -> bool:
        """True if this is the latest event of the step."""
        return bool(self._events) and self._events[-1][0] == event

    def _note_requests(self, event: str | None) -> None:
        """Append the begin and end of each request for an iterator since the last event, if this is for a batch."""
        if event not in (DATA, EVALUATION):
            return
        for request in self._requests:
            self._events.append((event, request.asked))
            if request.given is not None and event == DATA:
                self._events.append((NO_PHASE, request.given))

    def _settle_work(self, event: str | None) -> None:
        self._work.settle(event)
        if event in (BACKWARD, BACKWARD_WITHOUT_LOADER) and self._is_in(TRANSFER):
            self._work.settle_transfer()

    def _show(self, event: str | None) -> None:
        """Show the latest event. On a CPU a transfer is part of the forward pass, unless the script marks it."""
        if event == DATA and self._is_range_open_early:
            self._is_range_open_early = False
            return
        is_in_transfer = len(self._events) > 1 and self._events[-2][0] == TRANSFER
        if not self._on_gpu and not self.marks_phases:
            if is_in_transfer and event == FORWARD:
                return
            event = FORWARD if event == TRANSFER else event
        self._ranges.show(self._step.window, event, self._is_within_pass)

    def note_batch(self) -> None:
        """Begin the transfer of the batch, which ends when a module is called; without transfers, the forward pass."""
        self._is_within_pass = True
        if not self._awaits_call:
            self.note(FORWARD)
            return
        self.note(TRANSFER)
        first_call = self._first_call
        if first_call is not None and not first_call.is_waiting:
            first_call.wait()

    def _end_transfer(self) -> None:
        """Begin the forward pass, because a module is called, unless something else has come since the batch."""
        if self._is_in(TRANSFER) and self._awaits_call:
            self.note(FORWARD)

    def mark(self, event: str | None) -> None:
        """Append an event at this moment. From now on phases are not inferred."""
        self.marks_phases = True
        self._awaits_call = False
        self.note(event, is_marked=True)

    # Loaders.

    def iterator_asked(self, begins_pass: bool) -> None:
        """Keep this moment until a batch is asked for: only that shows whether the iterator is for an evaluation."""
        if self._on_gpu and is_capturing():
            return
        if begins_pass:
            self._settle_pass()
        self._requests.append(Request(self._mark(), len(self._work.noted)))
        if self._ranges.are_shown and begins_pass:
            self._ranges.close()
            self._ranges.show(self._step.window, DATA, is_within_pass=True)
            self._is_range_open_early = True

    def iterator_given(self) -> None:
        """Keep this moment, too, as the end of the latest request."""
        if self._requests:
            self._requests[-1].given = self._mark()

    def begin_draws(self) -> None:
        """Keep the place of the next event."""
        self._first_draw = len(self._events)

    def begin_pass(self, epoch: int) -> None:
        """Drop the events so far, and start the step where its iterator was asked for (if that was seen, else now)."""
        step = self._step
        self._is_within_pass = True
        if not self._requests:
            self._settle_pass()
        self._pass_begins()
        if not self._is_range_open_early:
            self._ranges.close()
        # What the host did before the pass is in no step.
        noted = self._work.take(self._requests[0].noted if self._requests else None)
        self._before_pass = BeforePass(step, self._events, noted)
        self._events.clear()
        step.epoch = epoch
        step.start = self._requests[0].asked if self._requests else self._mark()

    def end_pass(self) -> None:
        """Move the events so far to the last step, unless it is settled, or does not end where the open step starts."""
        last = self._last
        is_settled = last.settled is not None  # and so may be written already
        # If the open step does not start where the last one ends, work of multicard's own, or the end of a pass, lies
        # between them.
        if not self._events or is_settled or last.end is not self._step.start:
            return
        _, events_of_last = self._unsettled[-2]
        events_of_last += self._events
        self._work.keep(last)
        self._step.start = last.end = self._events[-1][1]
        self._events.clear()

    @property
    def is_untouched(self) -> bool:
        """True if the open step has just begun: nothing was noted in it yet, and nothing else has taken time."""
        has_noted = bool(self._events or self._requests or self._work.has_calls)
        is_soon = thread_time() - self._ended_cpu_s < JUST_CPU_S and perf_counter() - self._ended_s < JUST_S
        return not has_noted and is_soon

    # Evaluations.

    @property
    def is_evaluating(self) -> bool:
        """True while an evaluation is open."""
        return bool(self._events) and self._events[-1][0] == EVALUATION

    def note_evaluation(self) -> None:
        """Begin an evaluation, or go on with it."""
        if not self.is_evaluating:
            self.note(EVALUATION)

    def note_evaluated(self) -> None:
        """End an evaluation, if one is open."""
        if self.is_evaluating:
            self.note(EVALUATED)

    def retract_draws(self) -> None:
        """Replace the events since the step's first batch was asked for by an evaluation, and undo `begin_pass`."""
        tested = self._events[self._first_draw :]
        if tested:
            evaluation: list[PhaseEvent] = [(EVALUATION, tested[0][1])]
            # Otherwise the pass was broken off, and the evaluation goes on until the next event.
            if tested[-1][0] is NO_PHASE:
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
            self._work.put_back(before.noted)

    # Losses, counts and values from the script.

    def count(self, counts: StepCounts) -> None:
        """Keep the counts that the script states for the open step, unless all are None."""
        if counts != NOT_COUNTED:
            self.counts_itself = True
            self._step.counts = counts

    def log(self, values: Mapping[str, Any], weight: float, epoch: int, has_begun_work: bool) -> None:
        """Keep values that the script logs.

        Columns of epochs.csv become a row of that table, unless `epoch` is the only one. Other values are values of the
        open step if `has_begun_work`, else of the last step that has ended. What is no column of steps.csv either is
        dropped, and so are values of a step before the first one that is recorded.
        """
        if not values.keys().isdisjoint(VALUES_OF_EPOCHS):
            of_epoch = {name: value for name, value in values.items() if name in EPOCH_COLUMNS}
            self._epochs.append({"epoch": epoch, **of_epoch})
        step = self._step if has_begun_work else self._last
        for name in VALUES_OF_STEPS & values.keys():
            value = values[name]
            step.values[name].append((weight, value if callable(value) else torch.as_tensor(value).detach()))
        if step.settled is not None:  # the step's row exists already, as after the last step of a window
            step.settled.means = step.means()

    def epochs(self) -> list[Row]:
        """Return the rows of epochs.csv. A cell is None if its tensor cannot be read, as on a GPU that has failed."""
        return [{name: _cell(value) for name, value in row.items()} for row in self._epochs]


def _cell(value: Any) -> Cell:
    """Return a logged value as a cell: the mean of a tensor, or of the tensor that a function returns."""
    if callable(value) or isinstance(value, torch.Tensor):
        return read_or_none(lambda: read_value(value))
    return value
