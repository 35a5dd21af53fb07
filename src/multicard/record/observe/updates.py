"""Which of a script's updates and backward passes end its steps.

Steps end where the *lead* optimizer, the first one that updates, has done so. A script whose optimizers never update
may change its weights by hand: then each backward pass ends a step. Marks of the script come before both.
"""

import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any

from multicard.record.profiled_window import FIRST_BY_BACKWARD


class StepsBy(Enum):
    """What ends the steps, as rank.json has it."""

    OPTIMIZER = "optimizer"
    BACKWARD_PASSES = "backward passes"
    MARKS = "marks"


class Updates:
    """The updates and backward passes of one process; written by `Observer`, read by `Recording`.

    Both nest: a closure's backward pass lies within its optimizer's update, the updates of optimizers that are fused
    into the backward pass within that, and an optimizer may call the `step` of another.
    """

    def __init__(self) -> None:
        self.steps_by = StepsBy.OPTIMIZER
        self.optimizers: set[str] = set()  # names of the classes that have updated
        self.has_scaler = False  # a loss may be scaled, and so infinite without harm
        self.open_updates = 0  # nesting depth
        self.open_backwards = 0  # nesting depth
        self.has_had_backward = False
        self.backward_passes_by_hand = 0  # counted until an optimizer updates
        # Fused optimizers: the lead one has updated within a backward pass, whose end is that of the step.
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
        """Note that an optimizer has updated; return whether it leads, and so may end a step."""
        if self._lead() is None:  # once the lead optimizer is gone, the next one leads
            self._lead = weakref.ref(optimizer)
        return self.steps_by is not StepsBy.MARKS and self._lead() is optimizer

    @property
    def are_by_hand(self) -> bool:
        """True if the script may change its weights by hand: no optimizer has updated or does so now, nothing marks."""
        return not (self.optimizers or self.open_updates or self.steps_by is StepsBy.MARKS)

    def note_backward_by_hand(self) -> bool:
        """Note a backward pass while updates `are_by_hand`; return whether it ends a step.

        The first ones do not: an optimizer may follow that accumulates the gradients of many.

        >>> updates = Updates()
        >>> [updates.note_backward_by_hand() for _ in range(FIRST_BY_BACKWARD)].index(True) + 1 == FIRST_BY_BACKWARD
        True
        """
        self.backward_passes_by_hand += 1
        if self.backward_passes_by_hand < FIRST_BY_BACKWARD:
            return False
        self.steps_by = StepsBy.BACKWARD_PASSES
        return True
