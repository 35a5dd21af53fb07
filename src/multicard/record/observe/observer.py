"""Follows a script from update to update: its steps, their phases, and passes over the data.

Steps end where the *lead* optimizer, the first one that updates, has done so; the first update ends no step, since what
came before it was no steady training. A step begins where the one before it ended. The first of a pass begins where
the loader is asked for its iterator, which starts workers and asks for the first batches; the last one ends where the
loader is found exhausted. So tests and checkpoints between passes are in no step.

A script whose optimizers never update may change its weights by hand: then each backward pass ends a step.

An evaluation inside a pass is in the step that follows it, as a part of its own: what is drawn from a loader without
gradients, or with them before the pass trains anything.
"""

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import is_grad_enabled

from multicard.core.files import read_json
from multicard.record.memory_snapshot import HISTORY
from multicard.record.observe import OBSERVE
from multicard.record.observe.batches import Pass
from multicard.record.observe.ending import EndingProcess
from multicard.record.observe.loaders import Loader, samples_asked
from multicard.record.observe.marked import MarkedScript
from multicard.record.observe.phases import BACKWARD, DATA, EVALUATION, LEFT, OPTIMIZER, PASSED, TESTED, UNFED_BACKWARD
from multicard.record.observe.process import is_capturing
from multicard.record.observe.ranks import claim_rank, rank_of_process
from multicard.record.profiled_window import FIRST_BY_BACKWARD

MOST_BATCHES = 1000  # of a step; a process that never trains may draw any number
TEST = Pass(None)  # of any loader that is drawn from without gradients


class Observer(MarkedScript, EndingProcess):
    """Of one process. It costs next to nothing before the process makes an update, and leaves no file."""

    replay: Any = None  # `ablation.Replay` of a run without loading
    graphed: Any = None  # `graphed.Graphed` of a run without the host's work

    def __init__(self) -> None:
        self._note_process: Callable[..., None] = lambda **_: None
        self._job: str | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin as if nothing had been seen: a worker of a loader is no rank, other forked processes may be."""
        # Closing what a profiler of the parent had open would stop it here too, so that is kept.
        self._of_parent, self._recording = getattr(self, "_recording", None), None
        self._is_beside = False  # another process, which came first, has the same rank
        self._ended = False
        self._thread: int | None = None  # that trains
        self._lead: Callable[[], Any] = lambda: None  # gives the lead optimizer while it is there
        self._marked = False
        self._training_steps: int | None = None  # as the script states them
        self._updates = self._backwards = 0  # that are open
        self._boundary_due = False
        self._saw_backward = False
        self._passes_by_hand = 0  # backward passes, as long as no optimizer has updated
        self._counts_passes = False  # whether these are the steps
        self.has_scaler = False  # whether a loss may be scaled, and so not finite without harm
        self.optimizers: set[str] = set()
        self.step = 0  # until the first update
        self._loading: int | None = None  # thread that waits for a batch
        self.updated_in_graph: Any = None  # optimizer that a compiled function has updated since it was looked at
        self.loader = self._trained_loader = None  # of the latest step, and of the latest one that was trained on
        self.passes: list[Pass] = []
        self.epoch = 1
        self.steps_in_pass = self.batches_in_pass = 0
        self._begin_step()

    def begin(self, note_process: Callable[..., None], job: str) -> None:
        """Be ready for the first update."""
        self._note_process, self._job = note_process, job
        self._leave_at_exit()
        self._leave_at_errors()
        HISTORY.begin(self._read_job)
        os.register_at_fork(after_in_child=lambda: (self._forget(), self._leave_at_exit()))

    # Updates.

    def update_begins(self, has_closure: bool = False) -> None:
        """An optimizer is about to update; a closure begins with a forward pass."""
        self._look_for_update()
        self._force_exit()
        self._updates += 1
        if self._recording is not None and self._updates == 1 and not self._backwards and not has_closure:
            self._recording.note(OPTIMIZER)

    def update_ends(self, optimizer: Any) -> None:
        """An optimizer has updated, or failed to (None)."""
        self._updates -= 1
        self.updated_in_graph = None  # part of this one
        if self._updates or self._ended or optimizer is None:
            return
        self.optimizers.add(type(optimizer).__name__)
        if self._counts_passes and not self._recording.has_measured:
            self._counts_passes = False  # it accumulates more gradients than anybody would have thought
            self._restart()
        if self.graphed is not None:
            self.graphed.prepare(optimizer)
        if self._lead() is None:  # the first one that updates leads; once it is gone, the next one does
            self._lead = weakref.ref(optimizer)
        is_lead = not self._marked and self._lead() is optimizer
        if self._backwards:  # one optimizer per parameter, fused into the backward pass
            self._boundary_due |= is_lead
            return
        if self._recording is not None:
            self._recording.note(LEFT if is_lead else PASSED)
        # Optimizers of DeepSpeed update several times, for parts of the parameters.
        if is_lead and (self._backward_in_step or self.batches or not self._saw_backward):
            self._end_step(optimizer)

    def _look_for_update(self) -> None:
        """Take note of an update that a compiled function made, in which there is nothing to watch."""
        if self.updated_in_graph is None or self._updates or self._backwards:
            return
        if self._recording is None or get_ident() == self._thread:  # a thread may draw batches
            optimizer, self.updated_in_graph = self.updated_in_graph, None
            self.update_begins()
            self.update_ends(optimizer)

    def _restart(self) -> None:
        """Forget the steps that were recorded."""
        if self._recording is not None:
            self._recording, self.step = None, 0
            for each in self.passes:  # their iterators may go on
                each.batches[:] = [(0, contents) for _, contents in each.batches[-MOST_BATCHES:]]
            self.passes.clear()

    def _end_step(self, optimizer: Any) -> None:
        is_graphed = self.graphed is not None and self.graphed.is_open
        if is_capturing() and not is_graphed:
            return
        if self._is_beside:
            return
        self._note_trained()
        try:
            if self._recording is None:
                self._set_up(optimizer)
            elif is_graphed:
                self.graphed.make_steps(self._recording)
            else:
                self._recording.end_step()
            if self._recording is not None and not self._recording.is_complete:
                self.steps_in_pass += self.batches > 0
                self.step += 1
                self._begin_step()
                if self.graphed is None or not self.graphed.captures(self._recording):
                    self._recording.begin_step()
                return
            self._begin_step()
            if self._recording is not None:
                from multicard.record.observe.leaving import leave_in_order

                self._ended = True
                leave_in_order(self._recording)
        except Exception as error:
            self._give_up(error)

    def _set_up(self, optimizer: Any) -> None:
        from multicard.record.observe.recording import Recording

        self._thread = get_ident()
        self._leave_at_exit()  # multiprocessing drops it in a process that it forks
        job = self._read_job()
        if claim_rank(job):
            self._recording = Recording(job, self, optimizer, self._training_steps)
        else:
            self._is_beside = True
        self._note_process(steps=True, rank=rank_of_process())

    def _read_job(self) -> dict[str, Any]:
        return read_json(Path(os.environ.get(OBSERVE, self._job)))

    @property
    def steps_by(self) -> str:
        """What ends the steps: marks, backward passes or an optimizer."""
        return "marks" if self._marked else "backward passes" if self._counts_passes else "optimizer"

    # Batches: which pass they are of, and whether they are trained on or a test's.

    def _begin_step(self) -> None:
        """Count from here what the current step has seen."""
        self.batches = self._of_loop = 0  # all, and those of `loader`
        self._sources: list[Pass] = []  # of these
        self._drawn_from = 0  # number of the event before the first of these
        self._before_pass: Any = None  # what a pass that began in this step has changed
        self._backward_in_step = self._exhausted = False

    def iterator_asked(self, loader: Loader | None, is_plain: bool = True) -> bool:
        """A loader is asked for an iterator; return whether that is of a step, which `iterator_given` is then to end.

        `is_plain`: what the loader draws from others meanwhile is for its own batches, as where a sampler reads data.
        """
        if self.updated_in_graph is not None:
            self._look_for_update()
        recording = self._recording
        if recording is None or self._ended or self._loading is not None or get_ident() != self._thread:
            return False
        begins_pass = not self._is_begun and is_grad_enabled() and loader == self._trained_loader
        recording.iterator_asked(begins_pass)
        if is_plain:
            self._loading = self._thread
        return True

    def iterator_given(self) -> None:
        """It gave one."""
        self._loading = None
        if self._recording is not None:
            self._recording.iterator_given()

    def batch_asked(self, iterator: Any) -> Pass | None:
        """A loader is asked for a batch; give the pass over it, None unless it is known what it is for."""
        if self.updated_in_graph is not None:
            self._look_for_update()
        loader = getattr(iterator, "_multicard_loader", None)
        if loader is None or self._loading is not None or self._ended:
            return None
        thread = get_ident()
        recording = self._recording if thread == self._thread else None
        is_test = not is_grad_enabled()
        if is_test and recording is None:
            return None
        self._loading = thread
        drawn: Pass | None = getattr(iterator, "_multicard_pass", None)
        if self._exhausted or self._is_test_before(drawn):
            self._take_for_test(recording)
        if is_test:
            # Unless it is known that the script does something of the step.
            if not (self.batches or self._backward_in_step or self._updates or self._backwards):
                recording.note_evaluation(EVALUATION)
            return TEST
        is_first = getattr(iterator, "_num_yielded", None) == 0
        if is_first or drawn is None:
            drawn = iterator._multicard_pass = Pass(loader)
        if is_first and not self._is_begun:
            before = self.epoch, self.steps_in_pass, self.batches_in_pass
            self.epoch += self.steps_in_pass > 0
            self.steps_in_pass = self.batches_in_pass = 0
            self._before_pass = *before, recording and recording.begin_pass()
        if recording is not None:
            if not self.batches:
                self._drawn_from = recording.events
            recording.note_request(DATA)
        return drawn

    @property
    def _is_begun(self) -> bool:
        """Whether the step has done more than to wait, test or save."""
        return self.batches > 0 or self._backward_in_step

    def _is_test_before(self, drawn: Pass | None) -> bool:
        """Whether a pass that was broken off, before this one goes on, was a test: several batches, never trained on.

        A single one may be of a second loader, from which this step is the first to draw.
        """
        if self.batches < 2 or self._backward_in_step or len(self._sources) > 1 or drawn is None:
            return False
        return drawn.trained and not self._sources[0].trained

    def _take_for_test(self, recording: Any) -> None:
        """Take the batches of this step for those of a test, and undo what a pass that began with them has changed."""
        for each in self.passes:
            each.batches = [batch for batch in each.batches if batch[0] != self.step]
        self.passes = [each for each in self.passes if each.batches]
        kept = None
        if self._before_pass is None:
            self.batches_in_pass -= self._of_loop
        else:
            self.epoch, self.steps_in_pass, self.batches_in_pass, kept = self._before_pass
        if recording is not None:
            recording.retract(self._drawn_from, kept)
        self.loader = self._trained_loader
        self._begin_step()

    def _note_trained(self) -> None:
        """What the batches of this step are for."""
        for each in self._sources:
            each.trained = True
        self._trained_loader = self.loader

    def batch_given(self, iterator: Any, drawn: Pass, batch: Any, given: bool) -> None:
        """It gave a batch, or had none."""
        recording = self._recording if self._loading == self._thread else None
        self._loading = None
        if drawn is TEST:
            samples_asked(iterator)
            if not given and recording is not None:
                recording.note_evaluation(TESTED)
            return
        if not given:
            if recording is not None:
                recording.note(LEFT)
                if drawn.trained and drawn.loader == self._trained_loader and not self._is_begun:
                    recording.end_pass()
            drawn.ended = self.step
            is_untrained = drawn.loader is self.loader and not drawn.trained
            self._exhausted = is_untrained and self.batches > 0 and not self._backward_in_step
            return
        if recording is not None:
            recording.note_batch()
        if not self.batches:  # of several in a step the first is the one that the loop goes over
            self.loader = drawn.loader
        self.batches += 1
        self._of_loop += drawn.loader == self.loader
        self.batches_in_pass += drawn.loader == self.loader
        if drawn not in self._sources:
            self._sources.append(drawn)
        if drawn not in self.passes:
            self.passes.append(drawn)
        drawn.add(self.step, batch, samples_asked(iterator))
        if self.step == 0:
            del drawn.batches[:-MOST_BATCHES]

    # Backward passes.

    def backward_begins(self, roots: Any = None, is_within: bool = False) -> None:
        """A backward pass is about to begin, from these tensors.

        `is_within`: it may be within a forward pass, in a test, too, as `torch.autograd.grad` for forces is.
        """
        if self.updated_in_graph is not None:
            self._look_for_update()
        self._backwards += 1
        recording = self._recording
        if self._backwards > 1 or recording is None or self._ended:
            return
        if not is_within:
            recording.keep_loss(roots)
        if not (is_within and recording.is_evaluating):
            recording.note(BACKWARD if self.batches else UNFED_BACKWARD)

    def gradients_end(self) -> None:
        """`torch.autograd.grad` has ended, or failed: nobody knows whether anything was trained."""
        self._backwards -= 1
        if not self._backwards and self._recording is not None and not (self._ended or self._recording.is_evaluating):
            self._recording.note(OPTIMIZER if self._updates else PASSED)

    def backward_ends(self, done: bool) -> None:
        """It has ended, or failed."""
        self._backwards -= 1
        if self._backwards or not done or self._ended:
            return
        if not self._backward_in_step:
            self._note_trained()
        self._backward_in_step = self._saw_backward = True
        self._exhausted = False
        if self._recording is not None:
            self._recording.note(OPTIMIZER if self._updates else PASSED)
        if self._boundary_due:
            self._boundary_due = False
            self._end_step(self._lead())
        elif not (self.optimizers or self._marked or self._updates):
            self._count_by_hand()

    def _count_by_hand(self) -> None:
        """Count a backward pass that no optimizer's update has followed so far, nor any before it."""
        self._passes_by_hand += 1
        if self._passes_by_hand == 1:
            self._note_process(backward=True)
        if self._passes_by_hand >= FIRST_BY_BACKWARD:
            self._counts_passes = True
            self._end_step(None)


OBSERVER = Observer()


def marked() -> Observer | None:
    """Who is told of the script's marks; None where this module was imported by something else."""
    return OBSERVER if OBSERVE in os.environ else None
