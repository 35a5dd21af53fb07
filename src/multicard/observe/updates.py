"""Decide which of a script's updates and backward passes end its steps.

A step ends after each update of the *lead* optimizer, which is the first one that updates. If no optimizer updates,
the script may change its weights by hand; then each backward pass ends a step. If the script marks its steps, only the
marks end them.
"""

import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any

from multicard.observe.record.profiled_window import FIRST_BY_BACKWARD


class StepsBy(Enum):
    """What ends the steps, as rank.json has it."""

    OPTIMIZER = "optimizer"
    BACKWARD_PASSES = "backward passes"
    MARKS = "marks"


class Updates:
    """The updates and backward passes of one process; written by `Observer`, read by `Recording`.

    Both nest: the backward pass of a closure lies within the update of its optimizer; updates of optimizers that are
    fused into the backward pass lie within the backward pass; and an optimizer may call the `step` of another one.
    """

    def __init__(self) -> None:
        self.steps_by = StepsBy.OPTIMIZER
        self.optimizers: set[str] = set()  # class names of the optimizers that have updated
        self.has_scaler = False  # True once an enabled gradient scaler steps; a scaled loss may overflow harmlessly
        self.has_updated_in_graph = False  # True once a graph of torch.compile updates
        self.open_updates = 0  # nesting depth
        self.open_backwards = 0  # nesting depth
        self.has_had_backward = False
        self.backward_passes_by_hand = 0  # counted until an optimizer updates
        # True if the lead one of several fused optimizers has updated within the open backward pass. The step ends when
        # the backward pass does.
        self.is_boundary_due = False
        self._lead: Callable[[], Any] = lambda: None  # a weak reference once there is a lead optimizer

    @property
    def lead(self) -> Any:
        """The lead optimizer; None before the first update, and once it is gone."""
        return self._lead()

    @property
    def is_idle(self) -> bool:
        """True if neither an update nor a backward pass is open."""
        return not (self.open_updates or self.open_backwards)

    def note_update(self, optimizer: Any) -> bool:
        """Note that an optimizer has updated; return True if its update may end a step.

        That is so for the lead optimizer, unless marks end the steps.
        """
        if self._lead() is None:  # once the lead optimizer is gone, the next one leads
            self._lead = weakref.ref(optimizer)
        return self.steps_by is not StepsBy.MARKS and self._lead() is optimizer

    @property
    def are_by_hand(self) -> bool:
        """True if the script may change its weights by hand.

        That is, no optimizer has updated or is updating, and no marks end the steps.
        """
        return not (self.optimizers or self.open_updates or self.steps_by is StepsBy.MARKS)

    def note_backward_by_hand(self) -> bool:
        """Note a backward pass while updates `are_by_hand`; return True if it ends a step.

        Those before the one of number `FIRST_BY_BACKWARD` do not, because an optimizer that accumulates the gradients
        of many backward passes may still update.

        >>> updates = Updates()
        >>> [updates.note_backward_by_hand() for _ in range(FIRST_BY_BACKWARD)].index(True) + 1 == FIRST_BY_BACKWARD
        True
        """
        self.backward_passes_by_hand += 1
        if self.backward_passes_by_hand < FIRST_BY_BACKWARD:
            return False
        self.steps_by = StepsBy.BACKWARD_PASSES
        return True
