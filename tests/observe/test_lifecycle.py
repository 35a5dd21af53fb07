"""Each event leads an observed process from one state to another, or changes nothing."""

from itertools import product

import pytest

from multicard.observe.lifecycle import Action, Event, State, transition

# What happens to a process that trains from its first update to the end of its windows.
TRAINING = [
    (Event.BOUNDARY, State.WATCHING, Action.CLAIM_RANK),
    (Event.CLAIMED, State.RECORDING, Action.NOTHING),
    (Event.BOUNDARY, State.RECORDING, Action.END_STEP),
    (Event.BOUNDARY, State.RECORDING, Action.END_STEP),
    (Event.COMPLETED, State.ENDED, Action.LEAVE_IN_ORDER),
]


def ignored(state: State, *events: Event) -> list[tuple[Event, State, Action]]:
    """Return the part of a story in which events change nothing."""
    return [(event, state, Action.NOTHING) for event in events]


STORIES = {
    "it trains, and ends when it is asked to": [*TRAINING, (Event.EXITED, State.ENDED, Action.NOTHING)],
    "it trains, and takes no notice of its end": [*TRAINING, (Event.WENT_ON, State.ENDED, Action.EXIT_NOW)],
    "another process is the same rank": [
        TRAINING[0],
        (Event.TAKEN, State.DUPLICATE, Action.NOTHING),
        *ignored(State.DUPLICATE, Event.BOUNDARY, Event.RESTARTED, Event.WENT_ON, Event.EXITED),
    ],
    "the observer fails beside the process that is recorded": [
        TRAINING[0],
        (Event.TAKEN, State.DUPLICATE, Action.NOTHING),
        (Event.FAILED, State.ABANDONED, Action.REPORT_ERROR),
    ],
    "it marks its steps after some were inferred": [
        *TRAINING[:3],
        (Event.RESTARTED, State.WATCHING, Action.DROP_STEPS),
        *TRAINING,
    ],
    "it ends after too few steps": [*TRAINING[:3], (Event.EXITED, State.ENDED, Action.LEAVE_EARLY)],
    "it fails before it trains, or handles the error": [
        (Event.EXITED, State.WATCHING, Action.REPORT_ERROR),
        *TRAINING,
    ],
    "the observer fails before there are steps": [
        TRAINING[0],
        (Event.FAILED, State.ABANDONED, Action.REPORT_ERROR),
        *ignored(State.ABANDONED, Event.BOUNDARY, Event.WENT_ON, Event.EXITED),
    ],
    "ranks do not agree": [
        *TRAINING[:3],
        (Event.FAILED, State.ENDED, Action.LEAVE_EARLY),
        (Event.EXITED, State.ENDED, Action.NOTHING),
        (Event.WENT_ON, State.ENDED, Action.EXIT_NOW),
    ],
    "its record cannot be written": [*TRAINING, (Event.FAILED, State.ENDED, Action.LEAVE_EARLY)],
    "it forks a rank that trains": [*TRAINING[:3], (Event.FORKED, State.WATCHING, Action.FORGET), *TRAINING],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_process_goes_through_these_states(story: list[tuple[Event, State, Action]]) -> None:
    state = State.WATCHING
    for event, expected_state, expected_action in story:
        state, action = transition(state, event)
        assert (state, action) == (expected_state, expected_action), event


@pytest.mark.parametrize("state", State)
def test_a_forked_child_begins_as_if_nothing_had_been_seen(state: State) -> None:
    assert transition(state, Event.FORKED) == (State.WATCHING, Action.FORGET)


NOT_FORKED = [event for event in Event if event is not Event.FORKED]
# Events that change something in each state; a fork does in all.
EFFECTIVE = {
    State.WATCHING: {Event.BOUNDARY, Event.CLAIMED, Event.TAKEN, Event.FAILED, Event.EXITED},
    State.RECORDING: {Event.BOUNDARY, Event.COMPLETED, Event.RESTARTED, Event.FAILED, Event.EXITED},
    State.DUPLICATE: {Event.FAILED},
    State.ENDED: {Event.FAILED, Event.WENT_ON},
    State.ABANDONED: set(),
}  # fmt: skip


@pytest.mark.parametrize(("state", "event"), [*product(State, NOT_FORKED)])
def test_any_other_event_changes_nothing(state: State, event: Event) -> None:
    if event not in EFFECTIVE[state]:
        assert transition(state, event) == (state, Action.NOTHING)
    else:
        assert transition(state, event) != (state, Action.NOTHING)


def test_an_end_is_final_but_for_a_fork() -> None:
    for state, event in product((State.DUPLICATE, State.ENDED, State.ABANDONED), NOT_FORKED):
        following, _ = transition(state, event)
        assert following in (State.DUPLICATE, State.ENDED, State.ABANDONED)
