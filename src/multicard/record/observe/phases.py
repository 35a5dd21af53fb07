"""What the observer saw in a step, and the phases that follow from it."""

from collections.abc import Iterable
from typing import Any

DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"  # phases that begin
UNFED_BACKWARD = "backward without a loader"  # before which nothing tells where a forward pass began
LEFT = None  # a phase ends
PASSED = "passed"  # one ends, and what comes next may be a forward pass, if a backward pass follows

Event = tuple[str | None, Any]  # one of those above, and the mark of a clock


def phases_of(events: Iterable[Event]) -> list[tuple[str, Any, Any]]:
    """Phases of a step with the marks of their start and end, each of which ends the one before.

    >>> phases_of([(DATA, 0), (FORWARD, 1), (BACKWARD, 3), (PASSED, 4), (DATA, 5), (FORWARD, 6), (LEFT, 8)])
    [('data', 0, 1), ('forward', 1, 3), ('backward', 3, 4), ('data', 5, 6)]
    >>> phases_of([(DATA, 0), (FORWARD, 1), (BACKWARD, 3), (PASSED, 4), (BACKWARD, 6), (PASSED, 7)])[2:]
    [('backward', 3, 4), ('forward', 4, 6), ('backward', 6, 7)]
    """
    phases: list[tuple[str, Any, Any]] = []
    phase = start = passed = None  # passed: mark of the end of a backward pass or of another optimizer's update
    for event, mark in events:
        if event == BACKWARD and phase is None and passed is not None:
            phase, start = FORWARD, passed
        # What no backward pass follows was no forward pass.
        if phase is not None and (phase != FORWARD or event in (BACKWARD, UNFED_BACKWARD)):
            phases.append((phase, start, mark))
        phase, start = {UNFED_BACKWARD: BACKWARD, PASSED: None}.get(event, event), mark
        passed = mark if event == PASSED else None
    return phases
