"""The script's training loop as its batches show it: the current step and epoch, and what each batch is for.

An evaluation inside a pass over the data is in the step that follows it, as a part of its own: what is drawn from a
loader without gradients, or with them before the pass trains anything.
"""

from typing import NamedTuple

from multicard.record.observe.batches import Pass
from multicard.record.observe.loaders import Loader

# Batches of one pass that are kept before the first update: a process that never trains may draw any number.
MOST_UNUSED_BATCHES = 1000


class Position(NamedTuple):
    """Where the loop was before a pass over the data began."""

    epoch: int
    steps_in_pass: int
    batches_in_pass: int


class TrainingLoop:
    """Step, epoch, passes and batches of one process; written by `Observer`, read by `Recording`.

    Of several loaders that a step draws from, the first is the one that the loop goes over: its passes are epochs.
    """

    def __init__(self) -> None:
        self.step = 0  # number of the step that is open; 0 until the first update
        self.epoch = 1
        self.steps_in_pass = 0
        self.batches_in_pass = 0
        self.passes: list[Pass] = []
        # The loader from which the latest step drew, and from which the latest one that trained did.
        self.loader: Loader | None = None
        self.trained_loader: Loader | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Count from here what the open step has drawn and done."""
        self.batches = 0
        self.has_backward = False
        # Whether a pass of which nothing was trained has ended in this step: it was a test.
        self.has_ended_untrained = False
        self._batches_of_loader = 0
        self._passes_of_step: list[Pass] = []
        self._before_pass: Position | None = None

    def end_step(self) -> None:
        """Go on to the next step."""
        if self.batches:
            self.steps_in_pass += 1
        self.step += 1
        self.begin_step()

    def restart(self) -> None:
        """Count steps from the first again; what was drawn so far is from before them."""
        self.step = 0
        for drawn in self.passes:  # their iterators may go on
            drawn.forget_steps(MOST_UNUSED_BATCHES)
        self.passes.clear()

    @property
    def has_begun_work(self) -> bool:
        """True if the step has drawn a batch to train on, or has had a backward pass."""
        return self.batches > 0 or self.has_backward

    def note_trained(self) -> None:
        """Note that a backward pass or an update has followed the batches of this step."""
        for drawn in self._passes_of_step:
            drawn.trained = True
        self.trained_loader = self.loader

    def begin_pass(self) -> None:
        """Begin a pass over the data; an epoch has passed if the last one had a step."""
        self._before_pass = Position(self.epoch, self.steps_in_pass, self.batches_in_pass)
        if self.steps_in_pass > 0:
            self.epoch += 1
        self.steps_in_pass = self.batches_in_pass = 0

    def add_batch(self, drawn: Pass, batch: object, samples: int | None) -> None:
        """Count a batch of a pass; `samples`: see `Pass.add`."""
        if not self.batches:
            self.loader = drawn.loader
        self.batches += 1
        if drawn.loader == self.loader:
            self._batches_of_loader += 1
            self.batches_in_pass += 1
        if drawn not in self._passes_of_step:
            self._passes_of_step.append(drawn)
        if drawn not in self.passes:
            self.passes.append(drawn)
        drawn.add(self.step, batch, samples)
        if self.step == 0:
            drawn.forget_oldest(MOST_UNUSED_BATCHES)

    def end_pass(self, drawn: Pass) -> None:
        """Note that a loader has no more batches for a pass."""
        drawn.ended = self.step
        is_untrained = drawn.loader is self.loader and not drawn.trained
        self.has_ended_untrained = is_untrained and self.batches > 0 and not self.has_backward

    def ends_epoch(self, drawn: Pass) -> bool:
        """True if the end of this pass is that of the loop's own, before the step has begun its work."""
        return drawn.trained and drawn.loader == self.trained_loader and not self.has_begun_work

    def shows_test(self, drawn: Pass | None) -> bool:
        """True if what the step has drawn so far was a test, now that a batch of the pass `drawn` is asked for.

        Either a pass has ended of which nothing was trained. Or one was broken off before this one, which is trained
        on, goes on: it had several batches, since a single one may be of a second loader from which this step is the
        first to draw.
        """
        if self.has_ended_untrained:
            return True
        has_one_pass_of_several = self.batches >= 2 and len(self._passes_of_step) == 1
        if not has_one_pass_of_several or self.has_backward or drawn is None:
            return False
        return drawn.trained and not self._passes_of_step[0].trained

    def discard_test(self) -> None:
        """Forget the batches of this step, which were a test's, and the pass that began with them."""
        for drawn in self.passes:
            drawn.forget_step(self.step)
        self.passes = [drawn for drawn in self.passes if drawn.batches]
        if self._before_pass is None:
            self.batches_in_pass -= self._batches_of_loader
        else:
            self.epoch, self.steps_in_pass, self.batches_in_pass = self._before_pass
        self.loader = self.trained_loader
        self.begin_step()
