"""Infer the state of the script's training loop from its batches: the current step and epoch, and what batches are for.

An evaluation between two steps of a pass belongs to the step that follows it, as a phase of its own. Batches are those
of an evaluation if they are drawn while gradients are disabled, or if they are of a pass of which nothing is trained.
"""

from typing import NamedTuple

from multicard.observe.batches import Pass
from multicard.observe.loaders import Loader

# Before the first update, at most so many batches of each pass are kept, because a process that never trains may draw
# any number of batches.
MOST_UNUSED_BATCHES = 1000


class Position(NamedTuple):
    """Epoch, steps and batches that the loop had before a pass over the data began."""

    epoch: int
    steps_in_pass: int
    batches_in_pass: int


class TrainingLoop:
    """Step, epoch, passes and batches of one process; written by `Observer`, read by `Recording`.

    If a step draws from several loaders, the loop is taken to go over the first one: its passes are the epochs.
    """

    def __init__(self) -> None:
        self.step = 0  # number of the open step; 0 until the first update
        self.epoch = 1
        self.steps_in_pass = 0  # steps of the current pass that have ended and drew a batch
        self.batches_in_pass = 0  # batches drawn so far in the current pass
        self.passes: list[Pass] = []  # all passes that have given a batch, except those of tests
        # The first loader from which the latest step with a batch drew.
        self.loader: Loader | None = None
        # The value of `loader` when a step last trained.
        self.trained_loader: Loader | None = None
        self.begin_step()

    def begin_step(self) -> None:
        """Begin to count what the open step draws and does."""
        self.batches = 0
        self.has_backward = False
        # True if a pass has ended in this step of which nothing was trained: that pass was a test.
        self.has_ended_untrained = False
        self._batches_of_loader = 0  # batches of `loader` that this step has drawn
        self._passes_of_step: list[Pass] = []
        self.latest_pass: Pass | None = None  # of the latest batch of the step
        self._before_pass: Position | None = None

    def end_step(self) -> None:
        """Go on to the next step."""
        if self.batches:
            self.steps_in_pass += 1
        self.step += 1
        self.begin_step()

    def restart(self) -> None:
        """Count steps from the first again. Batches that were drawn so far count as drawn before the first step."""
        self.step = 0
        self.latest_pass = None
        for drawn in self.passes:  # the script may go on to draw batches of these passes
            drawn.forget_steps(MOST_UNUSED_BATCHES)
        self.passes.clear()

    @property
    def has_begun_work(self) -> bool:
        """True if the step has drawn a batch to train on, or has had a backward pass."""
        return self.batches > 0 or self.has_backward

    def note_backward(self) -> None:
        """Note the first backward pass of the step."""
        self.has_backward = True
        self.has_ended_untrained = False
        self.note_trained()

    def note_trained(self) -> None:
        """Note that a backward pass or an update has followed the batches of this step."""
        for drawn in self._passes_of_step:
            drawn.trained = True
        self.trained_loader = self.loader

    def begin_pass(self) -> None:
        """Begin a pass over the data. The epoch becomes the next one if the last pass had a step."""
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
        if drawn is not self.latest_pass:
            self.latest_pass = drawn
            if drawn not in self._passes_of_step:
                self._passes_of_step.append(drawn)
            # Mostly it is the latest pass: without looking there first, it would be compared with all passes.
            if not self.passes or (self.passes[-1] is not drawn and drawn not in self.passes):
                self.passes.append(drawn)
        drawn.add(self.step, batch, samples)
        if self.step == 0:
            drawn.forget_oldest(MOST_UNUSED_BATCHES)

    def end_pass(self, drawn: Pass) -> None:
        """Note that the loader has no more batches for the pass `drawn`."""
        drawn.ended = self.step
        is_untrained = drawn.loader is self.loader and not drawn.trained
        self.has_ended_untrained = is_untrained and self.batches > 0 and not self.has_backward

    def ends_epoch(self, drawn: Pass) -> bool:
        """True if this pass, which has ended, was the loop's pass over the training data.

        That is, the script has trained on it, it is a pass over `trained_loader`, and the open step has not begun its
        work.
        """
        return drawn.trained and drawn.loader == self.trained_loader and not self.has_begun_work

    def shows_test(self, drawn: Pass | None) -> bool:
        """True if the batches that the open step has drawn so far were a test's.

        This is called when a batch of the pass `drawn` is asked for; None if its iterator was never asked before. There
        are two signs of a test. First, a pass of which nothing was trained has ended in this step. Second, the step has
        drawn several batches, all of one pass of which nothing was trained, and now the script goes on with a pass that
        it trains on: so it broke off the other one. A single batch is no sign, because it may be of a second training
        loader, from which this step is the first to draw.
        """
        if self.has_ended_untrained:
            return True
        has_one_pass_of_several = self.batches >= 2 and len(self._passes_of_step) == 1
        if not has_one_pass_of_several or self.has_backward or drawn is None:
            return False
        return drawn.trained and not self._passes_of_step[0].trained

    def discard_test(self) -> None:
        """Forget the batches of the open step, which were a test's, and the pass that began with them, if one did."""
        for drawn in self.passes:
            drawn.forget_step(self.step)
        self.passes = [drawn for drawn in self.passes if drawn.batches]
        if self._before_pass is None:
            self.batches_in_pass -= self._batches_of_loader
        else:
            self.epoch, self.steps_in_pass, self.batches_in_pass = self._before_pass
        self.loader = self.trained_loader
        self.begin_step()
