"""The transfer of a batch ends where the script first calls a module that has parameters."""

import threading

import torch
from torch import nn
from torch.nn.modules import module as hooks

from multicard.observe.first_call import FirstCall
from multicard.observe.phases import BACKWARD, DATA, FORWARD, NO_PHASE, TRANSFER, phases_of

MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def test_a_call_of_a_module_with_parameters_is_told_once_and_leaves_no_hook() -> None:
    told: list[str] = []
    arrival = FirstCall(lambda: told.append("called"))
    inputs = torch.ones(3, 2, 2)
    MODEL(inputs)
    assert told == []
    arrival.wait()
    nn.Dropout()(inputs)  # as augmentation does
    assert told == []
    MODEL(inputs)
    MODEL(inputs)
    assert told == ["called"]
    assert not hooks._has_any_global_hook()


def test_each_wait_ends_at_the_next_call_of_any_module_with_parameters() -> None:
    told: list[str] = []
    arrival = FirstCall(lambda: told.append("called"))
    inputs = torch.ones(3, 2, 2)
    for model in (MODEL, MODEL, nn.Linear(2, 2), MODEL):
        before = len(told)
        arrival.wait()
        nn.Dropout()(inputs)
        assert len(told) == before
        model(inputs)
        assert len(told) == before + 1
    assert not hooks._has_any_global_hook()


def test_a_model_that_another_thread_calls_is_not_the_one() -> None:
    told: list[str] = []
    arrival = FirstCall(lambda: told.append("called"))
    arrival.wait()
    other = threading.Thread(target=MODEL, args=[torch.ones(3, 2, 2)])
    other.start()
    other.join()
    assert told == []
    arrival.stop()
    MODEL(torch.ones(3, 2, 2))
    assert told == []
    assert not hooks._has_any_global_hook()


def test_a_transfer_is_of_a_forward_pass_that_a_backward_pass_follows() -> None:
    events = [(DATA, 0), (TRANSFER, 1), (FORWARD, 2), (BACKWARD, 3), (NO_PHASE, 4)]
    assert phases_of(events, has_transfers=False) == [("data", 0, 1), ("forward", 1, 3), ("backward", 3, 4)]
    assert phases_of([*events[:3], (DATA, 3), (TRANSFER, 4), (NO_PHASE, 5)]) == [("data", 0, 1), ("data", 3, 4)]
