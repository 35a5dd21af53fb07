"""Which updates and backward passes end a step, without a process that trains."""

from multicard.observe.record.profiled_window import FIRST_BY_BACKWARD
from multicard.observe.updates import StepsBy, Updates


class Optimizer:
    """Anything of which there can be a weak reference."""


def test_the_first_optimizer_that_updates_leads_and_the_next_one_does_once_it_is_gone() -> None:
    updates = Updates()
    generator, discriminator = Optimizer(), Optimizer()
    assert [updates.note_update(optimizer) for optimizer in (discriminator, generator)] == [True, False]
    assert updates.lead is discriminator
    del discriminator
    assert updates.note_update(generator)


def test_no_update_leads_where_the_script_marks_its_steps() -> None:
    updates = Updates()
    updates.steps_by = StepsBy.MARKS
    assert not updates.note_update(Optimizer())
    assert not updates.are_by_hand


def test_many_backward_passes_without_an_update_are_the_steps() -> None:
    updates = Updates()
    assert updates.are_by_hand
    ends = [updates.note_backward_by_hand() for _ in range(FIRST_BY_BACKWARD + 1)]
    assert ends == [False] * (FIRST_BY_BACKWARD - 1) + [True, True]
    assert updates.steps_by is StepsBy.BACKWARD_PASSES


def test_a_backward_pass_within_an_update_or_after_one_is_not_by_hand() -> None:
    updates = Updates()
    updates.open_updates = 1
    assert not updates.are_by_hand
    updates.open_updates = 0
    updates.optimizers.add("SGD")
    assert not updates.are_by_hand
