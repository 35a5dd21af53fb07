"""Infer the phases of a step from the events that the observer noted in it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from multicard.core import layout
from multicard.core.layout import PHASES
from multicard.observe.record.clock import Mark

# Events that begin a phase. A transfer begins where a loader gave a batch. It is noted only if the start of the forward
# pass will be noted, too; otherwise the forward pass begins there.
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER = PHASES
# A backward pass in a step that has drawn no batch, so that no event shows where the forward pass before it began.
BACKWARD_WITHOUT_LOADER = "backward without a loader"
EVALUATION = layout.EVALUATION  # begins where a batch is drawn while gradients are disabled
# Events that end a phase and begin none.
EVALUATED = "evaluated"  # a loader of an evaluation is exhausted, which ends the evaluation
MAYBE_FORWARD = "maybe forward"  # the time from here to the next event is a forward pass if that is `BACKWARD`
NO_PHASE = None

ENDS = (NO_PHASE, MAYBE_FORWARD, EVALUATED)
# Events that the observer infers, unless the script marks its phases.
INFERRED = (TRANSFER, FORWARD, BACKWARD, BACKWARD_WITHOUT_LOADER, OPTIMIZER, MAYBE_FORWARD)

PhaseEvent = tuple[str | None, Mark]  # one of the events above, and its moment
Phase = tuple[str, Mark, Mark]  # name, start and end


def phase_of(event: str | None) -> str | None:
    """Return the phase that an event begins; None if it ends one and begins none.

    >>> phase_of(BACKWARD_WITHOUT_LOADER), phase_of(FORWARD), phase_of(EVALUATED)
    ('backward', 'forward', None)
    """
    if event in ENDS:
        return None
    return BACKWARD if event == BACKWARD_WITHOUT_LOADER else event


def marked_phases(events: Sequence[PhaseEvent]) -> list[Phase]:
    """Return the phases of a step whose phases the script marks: each lasts until the next event.

    >>> marked_phases([(DATA, 0), (NO_PHASE, 1), (TRANSFER, 1), (NO_PHASE, 2), (FORWARD, 2), (NO_PHASE, 4)])
    [('data', 0, 1), ('transfer', 1, 2), ('forward', 2, 4)]
    """
    return [
        (event, start, end) for (event, start), (_, end) in pairwise(events) if event is not None and event not in ENDS
    ]


def phases_of(events: Iterable[PhaseEvent], has_transfers: bool = True) -> list[Phase]:
    """Return the phases of a step, inferred from its events. A phase ends at the next event.

    `has_transfers`: True if the time between a batch and the first call of a module is a transfer; False if it is a
    part of the forward pass.

    >>> phases_of([(DATA, 0), (FORWARD, 1), (BACKWARD, 3), (MAYBE_FORWARD, 4), (DATA, 5), (FORWARD, 6), (NO_PHASE, 8)])
    [('data', 0, 1), ('forward', 1, 3), ('backward', 3, 4), ('data', 5, 6)]
    >>> two = [(DATA, 0), (FORWARD, 1), (BACKWARD, 3), (MAYBE_FORWARD, 4), (BACKWARD, 6), (MAYBE_FORWARD, 7)]
    >>> phases_of(two)[2:]
    [('backward', 3, 4), ('forward', 4, 6), ('backward', 6, 7)]
    >>> phases_of([(DATA, 0), (TRANSFER, 1), (FORWARD, 2), (BACKWARD, 3), (TRANSFER, 5), (BACKWARD, 7)])[1:]
    [('transfer', 1, 2), ('forward', 2, 3), ('backward', 3, 5), ('forward', 5, 7)]

    A batch that was drawn while gradients were disabled belongs to no evaluation if the next event is a backward pass,
    as in a script that disables gradients for a frozen part of the model.

    >>> tests = [(EVALUATION, 0), (EVALUATED, 2), (EVALUATION, 3), (DATA, 5), (NO_PHASE, 6)]
    >>> phases_of([*tests, (EVALUATION, 6), (BACKWARD, 9)])
    [('evaluation', 0, 2), ('evaluation', 3, 5), ('data', 5, 6)]
    """
    inference = _Inference(has_transfers)
    for event, mark in events:
        inference.take(event, mark)
    return inference.phases


class _Inference:
    """The phase that is open while the events of a step are read in their order."""

    __slots__ = ("_evaluated", "_forward_start", "_has_transfers", "_phase", "_start", "_transfer_start", "phases")

    def __init__(self, has_transfers: bool) -> None:
        self.phases: list[Phase] = []
        self._has_transfers = has_transfers
        self._phase: str | None = None
        self._start: Mark = None
        self._transfer_start: Mark | None = None  # None unless the forward pass after a transfer is open
        self._forward_start: Mark | None = None  # moment of the latest event if that was MAYBE_FORWARD; else None
        self._evaluated: Mark | None = None  # moment of the latest EVALUATED in the open evaluation; else None

    def take(self, event: str | None, mark: Mark) -> None:
        """End the open phase, and begin the phase that the event begins, if any."""
        is_backward = event in (BACKWARD, BACKWARD_WITHOUT_LOADER)
        if self._phase == EVALUATION:
            if event == EVALUATED:
                self._evaluated = mark
                return
            self._end_evaluation(mark, is_backward)
        if event == BACKWARD and self._phase is None and self._forward_start is not None:
            self._phase, self._start = FORWARD, self._forward_start
        if self._phase == TRANSFER and event == FORWARD:
            self._end_transfer(mark)
            return
        self._end_phase(mark, is_backward)
        self._begin_phase(event, mark)

    def _end_evaluation(self, mark: Mark, is_backward: bool) -> None:
        is_over = self._evaluated is not None
        if is_over or not is_backward:
            self.phases.append((EVALUATION, self._start, self._evaluated if is_over else mark))
        self._phase = self._evaluated = None

    def _end_transfer(self, mark: Mark) -> None:
        """Begin the forward pass. The transfer before it becomes a phase only if a backward pass follows."""
        if self._has_transfers:
            self._transfer_start, self._start = self._start, mark
        self._phase = FORWARD

    def _end_phase(self, mark: Mark, is_backward: bool) -> None:
        if self._phase in (TRANSFER, FORWARD):
            # Without a backward pass after it, it was no forward pass, and is left out.
            if is_backward:
                if self._transfer_start is not None:
                    self.phases.append((TRANSFER, self._transfer_start, self._start))
                self.phases.append((FORWARD, self._start, mark))
        elif self._phase is not None:
            self.phases.append((self._phase, self._start, mark))

    def _begin_phase(self, event: str | None, mark: Mark) -> None:
        self._phase = phase_of(event)
        self._start = mark
        self._forward_start = mark if event == MAYBE_FORWARD else None
        self._transfer_start = None
