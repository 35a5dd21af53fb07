"""Follow a script from update to update: its steps, their phases, and passes over the data.

The first update ends no step, because what came before it was no steady training: 3 updates make 2 steps. A step
begins where the one before it ended. So `ObservedProcess.end_step` is called at each boundary; at the first one it only
begins a step.

The first step of a pass over the data begins where the script asks the loader for its iterator, which starts workers
and asks for the first batches. The last step of a pass ends where the loader turns out to be exhausted, and its workers
have stopped. If the script breaks the pass off, it ends where they have stopped, if this comes right after it. So tests
and checkpoints between passes are in no step.

`hooks` calls the methods of `OBSERVER`; `multicard.marks` calls those that begin with `mark_`, and `wrap_loader`.
`updates` decides which updates end steps, and `training_loop` which batches are a test's. `observed_process` has the
state of the process, begins and ends the recorded steps, and writes the record.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import get_ident
from time import thread_time
from typing import Any

from torch import is_grad_enabled
from torch.utils.data import DataLoader

from multicard.observe import OBSERVE
from multicard.observe.ablation import Replay
from multicard.observe.batches import EVALUATION_PASS, Pass
from multicard.observe.events import NOT_RECORDED
from multicard.observe.loaders import Loader, LoaderDescription, samples_asked
from multicard.observe.loading_cpu import batches_timed
from multicard.observe.observed_process import ObservedProcess
from multicard.observe.phases import (
    BACKWARD,
    BACKWARD_WITHOUT_LOADER,
    DATA,
    MAYBE_FORWARD,
    NO_PHASE,
    OPTIMIZER,
)
from multicard.observe.plan import MarkedTraining
from multicard.observe.record.memory_snapshot import HISTORY
from multicard.observe.record.recorder import StepCounts
from multicard.observe.updates import StepsBy
from multicard.observe.wrapped_loader import WrappedLoader


class Observer:
    """Follows the training loop of this process by what its hooks and marks report.

    Nearly free, and writes no file, until the first optimizer step.
    """

    def __init__(self) -> None:
        self.process = ObservedProcess()
        # The thread that waits for a batch, or for the iterator of a plain loader (see `iterator_asked`); None if none
        # waits.
        self._loading_thread: int | None = None
        # CPU time of this thread when it asked for the latest batch, and for how many batches it is timed.
        self._loading_began_s = 0.0
        self._timed_batches = 0
        # The optimizer that was updated inside a graph of torch.compile, where its hooks are not called. None if there
        # is none, and once the update is noted.
        self.updated_in_graph: Any = None

    def begin(self, note_process: Callable[..., None], job: str) -> None:
        """Prepare for the first update, for the end of the process, and for forks.

        `note_process` adds facts to this process's process.json; `job` is the path of job.json.
        """
        self.process.begin(note_process, job, before_exit=self._note_update_in_graph)
        HISTORY.begin(self.process.read_job)
        os.register_at_fork(after_in_child=self._begin_after_fork)

    @property
    def replay(self) -> Replay | None:
        """The `Replay` that gives batches again in a run that goes without loading; None in any other run."""
        return self.process.replay

    def _begin_after_fork(self) -> None:
        self.process.begin_after_fork()
        self._loading_thread = None
        self.updated_in_graph = None

    # Updates.

    def update_begins(self, has_closure: bool = False) -> None:
        """Called when an optimizer is about to update.

        With a closure no phase begins yet, because the closure begins with a forward pass.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        process = self.process
        if process.is_over:
            process.exit_if_ended()
        updates = process.updates
        begins_phase = updates.is_idle and not has_closure
        updates.open_updates += 1
        if begins_phase:
            process.events.note(OPTIMIZER)

    def update_ends(self, optimizer: Any) -> None:
        """Called when an optimizer has updated; `optimizer` is None if it raised."""
        process = self.process
        updates = process.updates
        updates.open_updates -= 1
        # If a compiled function updated, it was called by this update, so it is not noted a second time.
        self.updated_in_graph = None
        if updates.open_updates or process.is_over or optimizer is None:
            return
        updates.optimizers.add(type(optimizer).__name__)
        process.backward_passes.update()
        if updates.steps_by is StepsBy.BACKWARD_PASSES and not process.has_measured:
            # The optimizer accumulates the gradients of more than `FIRST_BY_BACKWARD` backward passes, so its updates
            # end the steps after all.
            updates.steps_by = StepsBy.OPTIMIZER
            process.restart()
        is_lead = updates.note_update(optimizer)
        if updates.open_backwards:  # the optimizer is one of several, one per parameter, that a backward pass calls
            updates.is_boundary_due |= is_lead
            return
        process.events.note(NO_PHASE if is_lead else MAYBE_FORWARD)
        # DeepSpeed updates several times per step, each time a part of the parameters. So an update ends a step only if
        # the step has drawn a batch or had a backward pass. Where no backward pass was ever seen, each update ends one.
        if is_lead and (process.loop.has_begun_work or not updates.has_had_backward):
            process.end_step(optimizer)

    def _note_update_in_graph(self) -> None:
        """Note an update that a compiled function made, because its hooks are not called within the graph."""
        optimizer = self.updated_in_graph
        if optimizer is None or not self.process.updates.is_idle:
            return
        # Another thread than the training one may come here, because it draws batches; it must not note the update.
        if not self.process.trains_elsewhere:
            # Cleared first: `update_begins` calls this method as long as an update in a graph is to be noted.
            self.updated_in_graph = None
            self.process.updates.has_updated_in_graph = True
            self.update_begins()
            self.update_ends(optimizer)

    # Backward passes.

    def backward_begins(self, losses: Any = None, is_gradient_only: bool = False) -> None:
        """Called when a backward pass is about to begin from the tensors `losses`.

        `is_gradient_only`: True for `torch.autograd.grad`. A forward pass may call it, for example to compute the
        forces of a molecule, so during an evaluation it is a part of the evaluation.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        process = self.process
        updates = process.updates
        updates.open_backwards += 1
        if updates.open_backwards > 1:
            return
        events = process.events
        if not is_gradient_only:
            process.backward_passes.begin()
            if events.keeps_losses:
                events.losses = losses
        elif events.is_evaluating:
            return
        events.note(BACKWARD if process.loop.batches else BACKWARD_WITHOUT_LOADER)

    def gradients_end(self) -> None:
        """Called after `torch.autograd.grad`, also if it raised. It does not show whether anything was trained."""
        updates = self.process.updates
        updates.open_backwards -= 1
        if not updates.open_backwards and not self.process.events.is_evaluating:
            self.process.events.note(OPTIMIZER if updates.open_updates else MAYBE_FORWARD)

    def backward_ends(self, done: bool) -> None:
        """Called after `loss.backward()`; `done` is False if it raised."""
        process = self.process
        updates = process.updates
        loop = process.loop
        updates.open_backwards -= 1
        if updates.open_backwards or not done or process.is_over:
            return
        if process.backward_passes.exchanges:
            process.backward_passes.end()
        if not loop.has_backward:  # the first of the step
            loop.note_backward()
            updates.has_had_backward = True
        process.events.note(OPTIMIZER if updates.open_updates else MAYBE_FORWARD)
        if updates.is_boundary_due:
            updates.is_boundary_due = False
            process.end_step(updates.lead)
        elif not updates.optimizers and updates.are_by_hand:
            ends_step = updates.note_backward_by_hand()
            if updates.backward_passes_by_hand == 1:
                process.note(backward=True)
            if ends_step:
                process.end_step(None)

    # Batches: of which pass over the data they are, and whether the script trains on them or tests with them.

    def iterator_asked(self, loader: Loader | None, is_plain: bool = True) -> bool:
        """Called when a loader is asked for an iterator. Return True if `iterator_given` must be called afterwards.

        Return False, and note nothing, if no steps are recorded, on any other thread than the training one, and while a
        batch or the iterator of a plain loader is waited for.

        `loader`: None if it cannot be described. `is_plain`: True if batches that this loader draws from other loaders
        until it gives its iterator are for its own batches, as where its sampler reads data. They are not counted. The
        iterator of a loader that is not plain is not waited for in this sense, so such batches are counted.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        process = self.process
        if not process.is_recording or self._loading_thread is not None or get_ident() != process.training_thread:
            return False
        loop = process.loop
        begins_pass = not loop.has_begun_work and is_grad_enabled() and loader == loop.trained_loader
        self.process.events.iterator_asked(begins_pass)
        if is_plain:
            self._loading_thread = self.process.training_thread
        return True

    def iterator_given(self) -> None:
        """Called when the loader has given its iterator, or has raised."""
        self._loading_thread = None
        self.process.events.iterator_given()

    def batch_asked(self, iterator: Any) -> Pass | None:
        """Called when a loader's iterator is asked for a batch. Return the pass over the data that the batch is of.

        `batch_given` must be called afterwards with this pass, which is `EVALUATION_PASS` if gradients are disabled.

        None, and no such call, if the batch is not observed: if its loader cannot be described, while another loader is
        waited for, and after the observation has ended. If gradients are disabled, batches are observed only on the
        training thread, and only while steps are recorded.
        """
        if self.updated_in_graph is not None:
            self._note_update_in_graph()
        process = self.process
        loader: Loader | None = getattr(iterator, "_multicard_loader", None)
        if loader is None or self._loading_thread is not None or process.is_over:
            return None
        thread = get_ident()
        is_training_thread = thread == process.training_thread
        is_test = not is_grad_enabled()
        if is_test and not (is_training_thread and process.is_recording):
            return None
        self._loading_thread = thread
        loop = process.loop
        events = process.events if is_training_thread else NOT_RECORDED
        drawn: Pass | None = getattr(iterator, "_multicard_pass", None)
        # A further batch of the same pass shows nothing new.
        if (drawn is not loop.latest_pass or loop.has_ended_untrained) and loop.shows_test(drawn):
            loop.discard_test()
            events.retract_draws()
        if is_test:
            # The batch is of an evaluation, unless the script has begun the work of the step.
            if not loop.has_begun_work and process.updates.is_idle:
                events.note_evaluation()
            drawn = EVALUATION_PASS
        else:
            is_first = getattr(iterator, "_num_yielded", None) == 0
            if is_first or drawn is None:
                drawn = iterator._multicard_pass = Pass(loader)
            if is_first and not loop.has_begun_work:
                loop.begin_pass()
                events.begin_pass(loop.epoch)
            if not loop.batches:
                events.begin_draws()
            events.note(DATA)
        if is_training_thread and loader.description.num_workers == 0:
            self._timed_batches = batches_timed(loop.step, loop.batches)
            if self._timed_batches:
                self._loading_began_s = thread_time()
        return drawn

    def batch_given(self, iterator: Any, drawn: Pass, batch: Any, given: bool) -> None:
        """Called when a loader's iterator has given a batch (`given` is True), or has stopped or raised (False).

        `drawn`: the pass that `batch_asked` returned.
        """
        process = self.process
        loop = process.loop
        events = NOT_RECORDED
        if self._loading_thread == process.training_thread:
            events = process.events
            loader: LoaderDescription = iterator._multicard_loader.description
            if loader.num_workers != 0:
                process.loading_cpu.note_workers(loader, iterator)
            elif self._timed_batches:
                process.loading_cpu.add(loader, self._timed_batches * (thread_time() - self._loading_began_s))
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

    def workers_end(self, iterator: Any) -> bool:
        """Called when the workers of a loader's iterator are about to stop.

        Return True if this ends a pass over the training data that the script broke off, so that the wait for them
        becomes a part of the last step of the pass; `workers_ended` must then be called. It does only if nothing else
        was seen since that step. In a pass that the script did not break off they stop while a batch is waited for.
        """
        process = self.process
        if not process.is_recording or self._loading_thread is not None or get_ident() != process.training_thread:
            return False
        drawn: Pass | None = getattr(iterator, "_multicard_pass", None)
        if drawn is None or not process.loop.ends_epoch(drawn) or not process.events.is_untouched:
            return False
        process.events.note(DATA)
        return True

    def workers_ended(self) -> None:
        """Called when these workers have stopped."""
        self.process.events.note(NO_PHASE)
        self.process.events.end_pass()

    # Marks of the script. They take precedence over everything that is inferred.

    def mark_step(self, samples: int | None, tokens: int | None, padded_tokens: int | None) -> None:
        """End a step here. The arguments are its counts; None for what the script does not state."""
        self.process.exit_if_ended()
        if self.process.updates.steps_by is not StepsBy.MARKS:
            self.process.updates.steps_by = StepsBy.MARKS
            self.process.restart()
        if self.process.is_recording:
            self.process.events.count(StepCounts(samples, tokens, padded_tokens))
        self.process.end_step(None)

    def mark_training(self, steps: int | None, epoch: int) -> None:
        """Begin the first step here, in this epoch.

        `steps`: number of steps of the whole training, the warm-up included; None if the script does not state it.
        """
        self.process.exit_if_ended()
        self.process.updates.steps_by = StepsBy.MARKS
        self.process.training = MarkedTraining(steps)
        self.process.loop.epoch = epoch
        self.process.restart()
        # This boundary is the first, so it ends no step.
        self.process.end_step(None)

    @contextlib.contextmanager
    def mark_phase(self, name: str) -> Iterator[None]:
        """Time the block as the phase `name`, if it runs on the training thread. An error in it ends the phase, too."""
        is_training_thread = get_ident() == self.process.training_thread
        if is_training_thread:
            self.process.events.mark(name)
        try:
            yield
        except BaseException:
            if is_training_thread:
                with contextlib.suppress(Exception):  # on a GPU that has failed, the script's own error counts
                    self.process.events.mark(NO_PHASE)
            raise
        if is_training_thread:
            self.process.events.mark(NO_PHASE)

    def mark_values(self, values: Mapping[str, Any], weight: float) -> None:
        """Keep values that the script logs for a step or an epoch; `weight`: see `multicard.marks.log`."""
        self.process.log(values, weight)

    def wrap_loader(self, loader: Iterable[Any], ahead: int) -> Iterable[Any]:
        """Return a loader whose batches are observed. Those of a `DataLoader` are already, so it is returned as it is.

        `ahead`: number of batches that the loader prepares before they are asked for.
        """
        return loader if isinstance(loader, DataLoader) else WrappedLoader(self, loader, ahead)


OBSERVER = Observer()


def observer_of_process() -> Observer | None:
    """Return the observer of this process, or None if the process is not observed."""
    return OBSERVER if OBSERVE in os.environ else None
