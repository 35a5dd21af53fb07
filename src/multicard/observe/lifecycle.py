"""The states of an observed process, and which event leads from one to another.

`ObservedProcess` reports events and performs the actions. This module only decides, and has no side effects.

    WATCHING ──BOUNDARY──▶ (claim the rank) ──CLAIMED──▶ RECORDING ──COMPLETED──▶ ENDED
                                            └──TAKEN───▶ DUPLICATE
"""

from enum import Enum, auto


class State(Enum):
    """What the observer of a process does."""

    # Enum's own hash is slow, and a transition is looked up in every step.
    __hash__ = object.__hash__

    WATCHING = auto()  # no update so far: batches are counted, nothing is timed
    RECORDING = auto()  # a step is open, and timed
    DUPLICATE = auto()  # an earlier process has claimed this rank: nothing is recorded
    ENDED = auto()  # the record is written, and the script ends, or was asked to end
    ABANDONED = auto()  # an error ended the observation of a process that recorded no steps


class Event(Enum):
    """What happens to the observer of a process."""

    __hash__ = object.__hash__

    BOUNDARY = auto()  # the script has ended a step; the first boundary comes before the first step and only begins it
    CLAIMED = auto()  # this process is the first that has claimed its rank
    TAKEN = auto()  # an earlier process has claimed the rank
    COMPLETED = auto()  # all windows have had their steps
    RESTARTED = auto()  # something else than before ends the steps from now on (`updates.StepsBy`)
    FAILED = auto()  # the observer raised an error, or the ranks do not agree
    EXITED = auto()  # the process exits, or an error is about to end it
    WENT_ON = auto()  # the script updates again, or marks a step, after the observation has ended
    FORKED = auto()  # this process is a forked child of an observed process


class Action(Enum):
    """What the observer does about an event."""

    NOTHING = auto()
    CLAIM_RANK = auto()  # then report CLAIMED or TAKEN
    END_STEP = auto()
    DROP_STEPS = auto()  # forget what was recorded
    LEAVE_IN_ORDER = auto()  # write the record of a complete run, and end the script
    LEAVE_EARLY = auto()  # write the record of an incomplete run
    REPORT_ERROR = auto()  # there are no steps to write, only the error, if there is one
    EXIT_NOW = auto()  # end the process at once, because its script went on when it was asked to end
    FORGET = auto()  # begin as if nothing had been seen


_CHANGES = {
    (State.WATCHING, Event.BOUNDARY): (State.WATCHING, Action.CLAIM_RANK),
    (State.WATCHING, Event.CLAIMED): (State.RECORDING, Action.NOTHING),
    (State.WATCHING, Event.TAKEN): (State.DUPLICATE, Action.NOTHING),
    (State.WATCHING, Event.FAILED): (State.ABANDONED, Action.REPORT_ERROR),
    # A script may call its `sys.excepthook` for an error that it handles, and train after that.
    (State.WATCHING, Event.EXITED): (State.WATCHING, Action.REPORT_ERROR),
    (State.RECORDING, Event.BOUNDARY): (State.RECORDING, Action.END_STEP),
    (State.RECORDING, Event.COMPLETED): (State.ENDED, Action.LEAVE_IN_ORDER),
    (State.RECORDING, Event.RESTARTED): (State.WATCHING, Action.DROP_STEPS),
    (State.RECORDING, Event.FAILED): (State.ENDED, Action.LEAVE_EARLY),
    (State.RECORDING, Event.EXITED): (State.ENDED, Action.LEAVE_EARLY),
    (State.DUPLICATE, Event.FAILED): (State.ABANDONED, Action.REPORT_ERROR),
    # The record of a complete run could not be written. That of an early end may be smaller, or the disk may have space
    # again.
    (State.ENDED, Event.FAILED): (State.ENDED, Action.LEAVE_EARLY),
    (State.ENDED, Event.WENT_ON): (State.ENDED, Action.EXIT_NOW),
    # A forked child is another process: whatever its parent recorded is the parent's.
    **{(state, Event.FORKED): (State.WATCHING, Action.FORGET) for state in State},
}
# A state stays, and nothing is to be done, on any event that is not listed for it above.
_TRANSITIONS = {
    (state, event): _CHANGES.get((state, event), (state, Action.NOTHING)) for state in State for event in Event
}


def transition(state: State, event: Event) -> tuple[State, Action]:
    """Return the state after an event, and what the observer has to do.

    >>> transition(State.WATCHING, Event.CLAIMED)
    (<State.RECORDING: 2>, <Action.NOTHING: 1>)
    >>> transition(State.DUPLICATE, Event.BOUNDARY)
    (<State.DUPLICATE: 3>, <Action.NOTHING: 1>)
    """
    return _TRANSITIONS[state, event]
