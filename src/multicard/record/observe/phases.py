"""What the observer saw in a step, and the phases that follow from it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

# Phases that begin. A transfer does where a loader gave a batch, if the start of the forward pass is seen too.
DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER = "data", "transfer", "forward", "backward", "optimizer"
UNFED_BACKWARD = "backward without a loader"  # before which nothing tells where a forward pass began
EVALUATION = "evaluation"  # begins where a batch is drawn without gradients
TESTED = "tested"  # a loader of an evaluation is exhausted: the evaluation ends here, unless another one follows
LEFT = None  # a phase ends
PASSED = "passed"  # one ends, and what comes next may be a forward pass, if a backward pass follows

Event = tuple[str | None, Any]  # one of those above, and the mark of a clock
ENDS = (LEFT, PASSED, TESTED)
# What is inferred, but not where a script marks its phases.
GUESSED = (TRANSFER, FORWARD, BACKWARD, UNFED_BACKWARD, OPTIMIZER, PASSED)


def marked_phases(events: Sequence[Event]) -> list[tuple[str, Any, Any]]:
    """Phases of a step that the script marks: each lasts until the next event.

    >>> marked_phases([(DATA, 0), (LEFT, 1), (TRANSFER, 1), (LEFT, 2), (FORWARD, 2), (LEFT, 4)])
    [('data', 0, 1), ('transfer', 1, 2), ('forward', 2, 4)]
    """
    return [(event, mark, after) for (event, mark), (_, after) in pairwise(events) if event not in ENDS]


def phases_of(events: Iterable[Event], has_transfers: bool = True) -> list[tuple[str, Any, Any]]:
    """Phases of a step with the marks of their start and end, each of which ends the one before.

    `has_transfers`: whether what lies between a batch and a forward pass is the transfer of that batch; else it is of
    the latter.

    >>> phases_of([(DATA, 0), (FORWARD, 1), (BACKWARD, 3), (PASSED, 4), (DATA, 5), (FORWARD, 6), (LEFT, 8)])
    [('data', 0, 1), ('forward', 1, 3), ('backward', 3, 4), ('data', 5, 6)]
    >>> phases_of([(DATA, 0), (FORWARD, 1), (BACKWARD, 3), (PASSED, 4), (BACKWARD, 6), (PASSED, 7)])[2:]
    [('backward', 3, 4), ('forward', 4, 6), ('backward', 6, 7)]
    >>> phases_of([(DATA, 0), (TRANSFER, 1), (FORWARD, 2), (BACKWARD, 3), (TRANSFER, 5), (BACKWARD, 7)])[1:]
    [('transfer', 1, 2), ('forward', 2, 3), ('backward', 3, 5), ('forward', 5, 7)]

    What a backward pass follows was no evaluation, such as one of a model of which a part is in evaluation mode.

    >>> phases_of([(EVALUATION, 0), (TESTED, 2), (EVALUATION, 3), (DATA, 5), (LEFT, 6), (EVALUATION, 6), (BACKWARD, 9)])
    [('evaluation', 0, 2), ('evaluation', 3, 5), ('data', 5, 6)]
    """
    phases: list[tuple[str, Any, Any]] = []
    phase = start = passed = None  # passed: mark of the end of a backward pass or of another optimizer's update
    arrived = None  # mark of the batch before a forward pass, where its transfer ended
    tested = None  # mark of the end of an evaluation
    for event, mark in events:
        if phase == EVALUATION:
            if event == TESTED:
                tested = mark
                continue
            if tested is not None or event not in (BACKWARD, UNFED_BACKWARD):
                phases.append((EVALUATION, start, mark if tested is None else tested))
            phase = tested = None
        if event == BACKWARD and phase is None and passed is not None:
            phase, start = FORWARD, passed
        if phase == TRANSFER and event == FORWARD:
            arrived, start = (start, mark) if has_transfers else (None, start)
            phase = FORWARD
            continue
        # What no backward pass follows was no forward pass.
        if phase in (TRANSFER, FORWARD) and event in (BACKWARD, UNFED_BACKWARD):
            phases += [] if arrived is None else [(TRANSFER, arrived, start)]
            phases.append((FORWARD, start, mark))
        elif phase not in (None, TRANSFER, FORWARD):
            phases.append((phase, start, mark))
        phase, start = {UNFED_BACKWARD: BACKWARD, PASSED: None, TESTED: None}.get(event, event), mark
        passed, arrived = mark if event == PASSED else None, None
    return phases
