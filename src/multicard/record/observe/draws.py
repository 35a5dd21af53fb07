"""Batches that the steps of a script draw: which pass they are of, and whether they are trained on or a test's."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import is_grad_enabled

from multicard.record.observe.batches import Pass
from multicard.record.observe.loaders import ask_again, samples_asked
from multicard.record.observe.phases import DATA, EVALUATION, LEFT, TESTED

MOST_BATCHES = 1000  # of a step; a process that never trains may draw any number
TEST = Pass(None)  # of any loader that is drawn from without gradients


class Draws:
    """The part of the observer that loaders tell of themselves."""

    replay: Any = None  # `ablation.Replay` of a run without loading
    graphed: Any = None  # `graphed.Graphed` of a run without the host's work

    def _forget_draws(self) -> None:
        """Begin as if nothing had been drawn."""
        self._loading: int | None = None  # thread that waits for a batch
        self.updated_in_graph: Any = None  # optimizer that a compiled function has updated since it was looked at
        self.loader = self._trained_loader = None  # of the latest step, and of the latest one that was trained on
        self.passes: list[Pass] = []
        self.epoch = 1
        self.steps_in_pass = self.batches_in_pass = 0
        self._begin_step()

    def _begin_step(self) -> None:
        """Count from here what the current step has seen."""
        self.batches = self._of_loop = 0  # all, and those of `loader`
        self._sources: list[Pass] = []  # of these
        self._drawn_from = 0  # number of the event before the first of these
        self._before_pass: Any = None  # what a pass that began in this step has changed
        self._backward_in_step = self._exhausted = False

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
        if is_first and not self._backward_in_step and not self.batches:
            before = self.epoch, self.steps_in_pass, self.batches_in_pass
            self.epoch += self.steps_in_pass > 0
            self.steps_in_pass = self.batches_in_pass = 0
            self._before_pass = *before, recording and recording.begin_pass()
        if recording is not None:
            if not self.batches:
                self._drawn_from = recording.events
            recording.note(DATA)
        return drawn

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

    def replayed(self, plain: Callable[[Any], Any], iterator: Any, drawn: Pass) -> Any:
        """The batch that an iterator gives by `plain` in a run without loading: its next, or one that was kept."""
        kept, loader = getattr(iterator, "_multicard_kept", None), drawn.loader
        if kept is None or drawn is TEST:
            return plain(iterator)
        if self.replay.is_due(kept, drawn.trained):
            yielded = iterator._num_yielded
            self.replay.stop_loading(kept, lambda: (plain(iterator), samples_asked(iterator)), loader.ahead)
            iterator._num_yielded = yielded
        if kept.is_full:
            if loader.length is not None and iterator._num_yielded >= loader.length and not loader.is_endless:
                raise StopIteration
            iterator._num_yielded += 1
            batch, asked = kept.next()
        else:
            batch, asked = plain(iterator), samples_asked(iterator)
            kept.add(batch, asked)
        ask_again(iterator, asked)
        return batch

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
