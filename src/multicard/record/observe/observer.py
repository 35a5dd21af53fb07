"""Follow a script from update to update: its steps, their phases, and passes over the data.

The first update ends no step, since what came before it was no steady training. A step begins where the one before it
ended. The first of a pass begins where the loader is asked for its iterator, which starts workers and asks for the
first batches; the last one ends where the loader turns out to be exhausted. So tests and checkpoints between passes are
in no step.

`hooks` calls the methods of `OBSERVER`, and `multicard.marks` those that begin with `mark_`. `lifecycle` decides what
each event leads to, `updates` which updates end steps, `training_loop` which batches are a test's. `recording` keeps
the steps.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from torch import is_grad_enabled
from torch.utils.data import DataLoader

from multicard.core.files import read_json
from multicard.record.memory_snapshot import HISTORY
from multicard.record.observe import OBSERVE
from multicard.record.observe.batches import EVALUATION_PASS, Pass
from multicard.record.observe.events import NOT_RECORDED, StepEvents
from multicard.record.observe.lifecycle import Action, Event, State, transition
from multicard.record.observe.loaders import Loader, samples_asked
from multicard.record.observe.phases import (
    BACKWARD,
    BACKWARD_WITHOUT_LOADER,
    DATA,
    MAYBE_FORWARD,
    NO_PHASE,
    OPTIMIZER,
)
from multicard.record.observe.process import error_of_exit, is_capturing, leave_now
from multicard.record.observe.ranks import claim_rank, rank_of_process
from multicard.record.observe.training_loop import TrainingLoop
from multicard.record.observe.updates import StepsBy, Updates
from multicard.record.observe.wrapped_loader import WrappedLoader

# At run time these are imported with the first update: most processes that import torch never make one.
if TYPE_CHECKING:
    from multicard.record.observe.ablation import Replay
    from multicard.record.observe.graphed import Graphed
    from multicard.record.observe.recording import Recording


class Observer:
    """Times the training steps of this process. Nearly free, and writes no file, until the first optimizer step."""

    def __init__(self) -> None:
        self.replay: Replay | None = None  # None unless the run goes without loading
        self.graphed: Graphed | None = None  # None unless the run goes without the host's work
        self._note_process: Callable[..., None] = lambda **_: None
        self._job: str = ""  # path of job.json, once the process is observed
        self._recording: Recording | None = None
        self._forget()

    def _forget(self) -> None:
        """Reset all state, as after a fork. DataLoader workers are never ranks; other forked processes can be."""
        # Closing what a profiler of the parent had open would stop it here too, so it is kept.
        self._recording_of_parent = self._recording
        # None before the first update, and where the rank is taken; see `lifecycle`.
        self._recording = None
        self._state = State.WATCHING
        # Takes what happens in the open step; ignores it if no step is open.
        self._events: StepEvents = NOT_RECORDED
        self._is_over = False  # nothing is observed any more
        self._is_recording = False
        self._training_thread: int | None = None
        self._loading_thread: int | None = None  # it waits for a batch
        self._training_steps: int | None = None  # None unless the script states them
        # The optimizer that a compiled function has updated, where nothing else shows that it did.
        self.updated_in_graph: Any = None
        self.updates = Updates()
        self.loop = TrainingLoop()

    def begin(self, note_process: Callable[..., None], job: str) -> None:
        """Be ready for the first update.

        `note_process` adds facts to this process's process.json; `job` is the path of job.json.
        """
        self._note_process = note_process
        self._job = job
        self._leave_at_exit()
        self._leave_at_errors()
        HISTORY.begin(self._read_job)
        os.register_at_fork(after_in_child=self._begin_after_fork)

    def _begin_after_fork(self) -> None:
        if self._take(Event.FORKED) is Action.FORGET:
            self._forget()
        self._leave_at_exit()

    def _take(self, event: Event) -> Action:
        """Go to the state that an event leads to; return what is to be done."""
        state, action = transition(self._state, event)
        if state is not self._state:
            self._enter(state)
        return action

    def _enter(self, state: State) -> None:
        """Be in a state, and keep what follows from it where the hooks get it fastest."""
        self._state = state
        self._is_over = state is State.ENDED or state is State.ABANDONED
        self._is_recording = state is State.RECORDING or state is State.CAPTURING
        is_step_open = state is State.RECORDING
        self._events = self._recording.events if is_step_open and self._recording is not None else NOT_RECORDED

    def _read_job(self) -> dict[str, Any]:
        return read_json(Path(os.environ.get(OBSERVE, self._job)))

    # Updates.

    def update_begins(self, has_closure: bool = False) -> None:
        """An optimizer is about to update; a closure begins with a forward pass."""
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        self._exit_if_ended()
        updates = self.updates
        begins_phase = updates.is_idle and not has_closure
        updates.open_updates += 1
        if begins_phase:
            self._events.note(OPTIMIZER)

    def update_ends(self, optimizer: Any) -> None:
        """An optimizer has updated, or failed to (None)."""
        updates = self.updates
        updates.open_updates -= 1
        self.updated_in_graph = None  # part of this one
        if updates.open_updates or self._is_over or optimizer is None:
            return
        updates.optimizers.add(type(optimizer).__name__)
        if updates.steps_by is StepsBy.BACKWARD_PASSES and not self._has_measured():
            # It accumulates the gradients of more backward passes than were to be expected.
            updates.steps_by = StepsBy.OPTIMIZER
            self._restart()
        if self.graphed is not None:
            self.graphed.prepare(optimizer)
        is_lead = updates.note_update(optimizer)
        if updates.open_backwards:  # one optimizer per parameter, fused into the backward pass
            updates.is_boundary_due |= is_lead
            return
        self._events.note(NO_PHASE if is_lead else MAYBE_FORWARD)
        # Optimizers of DeepSpeed update several times, for parts of the parameters.
        if is_lead and (self.loop.has_begun_work or not updates.has_had_backward):
            self._end_step(optimizer)

    def _has_measured(self) -> bool:
        return self._recording is not None and self._recording.has_measured

    def _note_update_in_graph(self) -> None:
        """Note an update that a compiled function made: its hooks are not called within the graph."""
        optimizer = self.updated_in_graph
        if optimizer is None or not self.updates.is_idle:
            return
        # A thread may draw batches while another one trains.
        if self._recording is None or get_ident() == self._training_thread:
            self.updated_in_graph = None
            self.update_begins()
            self.update_ends(optimizer)

    # Backward passes.

    def backward_begins(self, losses: Any = None, is_gradient_only: bool = False) -> None:
        """A backward pass is about to begin, from these tensors.

        `is_gradient_only`: it is one of `torch.autograd.grad`, which may be within a forward pass, in a test, too, as
        for the forces of a molecule.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        updates = self.updates
        updates.open_backwards += 1
        if updates.open_backwards > 1:
            return
        events = self._events
        if not is_gradient_only:
            events.keep_losses(losses)
        elif events.is_evaluating:
            return
        events.note(BACKWARD if self.loop.batches else BACKWARD_WITHOUT_LOADER)

    def gradients_end(self) -> None:
        """`torch.autograd.grad` has ended, or failed: it does not show whether anything was trained."""
        updates = self.updates
        updates.open_backwards -= 1
        if not updates.open_backwards and not self._events.is_evaluating:
            self._events.note(OPTIMIZER if updates.open_updates else MAYBE_FORWARD)

    def backward_ends(self, done: bool) -> None:
        """`loss.backward()` has ended; `done` is False if it raised."""
        updates, loop = self.updates, self.loop
        updates.open_backwards -= 1
        if updates.open_backwards or not done or self._is_over:
            return
        if not loop.has_backward:
            loop.note_trained()
        loop.has_backward = updates.has_had_backward = True
        loop.has_ended_untrained = False
        self._events.note(OPTIMIZER if updates.open_updates else MAYBE_FORWARD)
        if updates.is_boundary_due:
            updates.is_boundary_due = False
            self._end_step(updates.lead)
        elif updates.are_by_hand:
            ends_step = updates.note_backward_by_hand()
            if updates.backward_passes_by_hand == 1:
                self._note_process(backward=True)
            if ends_step:
                self._end_step(None)

    # Steps.

    def _end_step(self, optimizer: Any) -> None:
        """End the open step, which the update of an optimizer, a backward pass or a mark has completed."""
        # What the script captures itself as a CUDA graph has not run yet.
        if is_capturing() and self._state is not State.CAPTURING:
            return
        action = self._take(Event.BOUNDARY)
        if action is Action.NOTHING:
            return
        self.loop.note_trained()
        try:
            self._perform_boundary(action, optimizer)
        except Exception as error:
            self._give_up(error)

    def _perform_boundary(self, action: Action, optimizer: Any) -> None:
        if action is Action.CLAIM_RANK:
            self._claim_rank(optimizer)
        recording = self._recording
        if recording is None:  # the rank is taken
            self.loop.begin_step()
            return
        if action is Action.END_STEP:
            recording.end_step()
        elif action is Action.REPLAY_STEPS and self.graphed is not None:
            self.graphed.make_steps(recording)
        if recording.is_complete:
            self.loop.begin_step()
            self._take(Event.COMPLETED)
            from multicard.record.observe.leaving import leave_in_order

            leave_in_order(recording, self.replay)
        self.loop.end_step()
        if self.graphed is not None and self.graphed.captures(recording):
            self._take(Event.CAPTURE_BEGAN)
        else:
            recording.begin_step()

    def _claim_rank(self, optimizer: Any) -> None:
        """Begin to record, unless an earlier process claimed this rank."""
        from multicard.record.observe.recording import Recording

        self._training_thread = get_ident()
        self._leave_at_exit()  # multiprocessing drops it in a process that it forks
        job = self._read_job()
        if claim_rank(job):
            self._recording = Recording(job, self.loop, self.updates, optimizer, self._training_steps)
            self._take(Event.CLAIMED)
        else:
            self._take(Event.TAKEN)
        self._note_process(steps=True, rank=rank_of_process())

    def _restart(self) -> None:
        """Forget the steps that were recorded, if any were."""
        if self._take(Event.RESTARTED) is Action.DROP_STEPS:
            self._recording = None
            self.loop.restart()

    # Batches: which pass they are of, and whether they are trained on or a test's.

    def iterator_asked(self, loader: Loader | None, is_plain: bool = True) -> bool:
        """A loader is asked for an iterator; return whether that is in a step: then `iterator_given` is to follow.

        `is_plain`: what the loader draws from others meanwhile is for its own batches, as where a sampler reads data.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        if not self._is_recording or self._loading_thread is not None or get_ident() != self._training_thread:
            return False
        loop = self.loop
        begins_pass = not loop.has_begun_work and is_grad_enabled() and loader == loop.trained_loader
        self._events.iterator_asked(begins_pass)
        if is_plain:
            self._loading_thread = self._training_thread
        return True

    def iterator_given(self) -> None:
        """The loader gave its iterator, or failed to."""
        self._loading_thread = None
        self._events.iterator_given()

    def batch_asked(self, iterator: Any) -> Pass | None:
        """A loader's iterator is asked for a batch; return the pass that it is of, None if that is not to be counted.

        `batch_given` is to follow unless it is None.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        loader = getattr(iterator, "_multicard_loader", None)
        if loader is None or self._loading_thread is not None or self._is_over:
            return None
        thread = get_ident()
        is_training_thread = thread == self._training_thread
        is_test = not is_grad_enabled()
        if is_test and not (is_training_thread and self._is_recording):
            return None
        self._loading_thread = thread
        loop = self.loop
        events = self._events if is_training_thread else NOT_RECORDED
        drawn: Pass | None = getattr(iterator, "_multicard_pass", None)
        if loop.shows_test(drawn):
            loop.discard_test()
            events.retract_draws()
        if is_test:
            # It is an evaluation unless the script has begun the work of the step.
            if not loop.has_begun_work and self.updates.is_idle:
                events.note_evaluation()
            return EVALUATION_PASS
        is_first = getattr(iterator, "_num_yielded", None) == 0
        if is_first or drawn is None:
            drawn = iterator._multicard_pass = Pass(loader)
        if is_first and not loop.has_begun_work:
            loop.begin_pass()
            events.begin_pass(loop.epoch)
        events.note_request(DATA, begins_draws=not loop.batches)
        return drawn

    def batch_given(self, iterator: Any, drawn: Pass, batch: Any, given: bool) -> None:
        """A loader's iterator returned a batch (`given`), or stopped."""
        loop = self.loop
        events = self._events if self._loading_thread == self._training_thread else NOT_RECORDED
        self._loading_thread = None
        if drawn is EVALUATION_PASS:
            samples_asked(iterator)
            if not given:
                events.note_evaluated()
        elif given:
            events.note_batch()
            loop.add_batch(drawn, batch, samples_asked(iterator))
        else:
            events.note(NO_PHASE)
            if loop.ends_epoch(drawn):
                events.end_pass()
            loop.end_pass(drawn)

    # Marks of the script, which come before all that is inferred.

    def mark_step(self, **counts: int | None) -> None:
        """A step ends here."""
        self._exit_if_ended()
        if self.updates.steps_by is not StepsBy.MARKS:
            self.updates.steps_by = StepsBy.MARKS
            self._restart()
        if self._is_recording:
            self._events.count(counts)
            if self.graphed is not None:
                self.graphed.counts = counts
        self._end_step(None)

    def mark_training(self, steps: int | None, epoch: int) -> None:
        """The first step begins here, in that epoch; `steps` are all that are trained, if the script states them."""
        self._exit_if_ended()
        self.updates.steps_by = StepsBy.MARKS
        self._training_steps = steps
        self.loop.epoch = epoch
        self._restart()
        self._end_step(None)

    @contextlib.contextmanager
    def mark_phase(self, name: str) -> Iterator[None]:
        """The block is a phase."""
        is_training_thread = get_ident() == self._training_thread
        if is_training_thread:
            self._events.mark(name)
        yield
        if is_training_thread:
            self._events.mark(NO_PHASE)

    def mark_values(self, values: Mapping[str, Any], weight: float) -> None:
        """The step, or an epoch, has these values."""
        if self._recording is not None and self._is_recording:
            self._recording.events.log(values, weight, self.loop.epoch, self.loop.has_begun_work)

    def wrap_loader(self, loader: Iterable[Any], ahead: int) -> Iterable[Any]:
        """Return the loader in a form whose batches are observed; PyTorch's own are already."""
        return loader if isinstance(loader, DataLoader) else WrappedLoader(self, loader, ahead)

    # The end of the process.

    def _leave_at_exit(self) -> None:
        Finalize(None, self.leave, exitpriority=100)

    def _leave_at_errors(self) -> None:
        """Leave a record as soon as an error ends the process, whose exit may wait for other ranks.

        A program of multicard's own that has a process group does without Python's end, where NCCL may wait for ever.
        """
        plain = sys.excepthook

        def leave(error_type: type[BaseException], error: BaseException, traceback: Any) -> None:
            plain(error_type, error, traceback)
            self.leave()
            if dist.is_available() and dist.is_initialized() and not self._read_job()["observe"]["is_user_program"]:
                leave_now(1)

        sys.excepthook = leave

    def leave(self) -> None:
        """Leave a record of what there is, unless it is written: the process exits."""
        self._note_update_in_graph()
        error = error_of_exit()
        if not isinstance(error, KeyboardInterrupt):
            self._leave_record(self._take(Event.EXITED), error)

    def _exit_if_ended(self) -> None:
        """Exit if the script was asked to end, and goes on."""
        if self._is_over and self._take(Event.WENT_ON) is Action.EXIT_NOW:
            leave_now(0)

    def _give_up(self, error: Exception) -> NoReturn:
        """End the script because of an error of the observer, or of ranks that do not agree.

        If another rank has left, and all measured steps were made, only the trace is lost.
        """
        from multicard.record.capture import RankLeft

        has_numbers = isinstance(error, RankLeft) and self._has_measured()
        action = self._take(Event.FAILED)
        if not has_numbers:
            print(f"multicard: cannot go on observing: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # the disk may be full
            self._leave_record(action, error)
        raise SystemExit(0 if has_numbers else 1) from error

    def _leave_record(self, action: Action, error: BaseException | None) -> None:
        if action is Action.LEAVE_EARLY and self._recording is not None:
            from multicard.record.observe.leaving import leave_early

            if self.graphed is not None:
                error = self.graphed.explained(error)
            leave_early(self._recording, error, self.replay)
        elif action is Action.REPORT_ERROR and error is not None:
            from multicard.record.observe.failure import write_failure

            write_failure(error, self._note_process, self._read_job())


OBSERVER = Observer()


def observer_of_process() -> Observer | None:
    """Return the observer of this process, or None if the process is not observed."""
    return OBSERVER if OBSERVE in os.environ else None
