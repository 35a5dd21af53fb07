"""What a training loop draws is told from what its tests draw, without a process that trains."""

from multicard.observe.batches import Pass
from multicard.observe.loaders import Loader, LoaderDescription
from multicard.observe.training_loop import TrainingLoop

TRAINING, TEST = (Loader(LoaderDescription("Batches", batch_size=size), size, 4, 0) for size in (8, 3))


def draw(loop: TrainingLoop, drawn: Pass, batches: int = 1) -> None:
    for _ in range(batches):
        loop.add_batch(drawn, None, drawn.loader.batch_size)


def train(loop: TrainingLoop, drawn: Pass, steps: int) -> None:
    for _ in range(steps):
        draw(loop, drawn)
        loop.note_trained()
        loop.end_step()


def trained_loop() -> tuple[TrainingLoop, Pass]:
    """Return a loop in its second epoch of four steps, and the pass that it goes over; step 1 comes after an update."""
    loop = TrainingLoop()
    drawn = Pass(TRAINING)
    train(loop, drawn, steps=1)
    loop.begin_pass()
    train(loop, drawn := Pass(TRAINING), steps=2)
    return loop, drawn


def test_an_epoch_passes_with_a_pass_that_had_a_step() -> None:
    loop, _ = trained_loop()
    assert (loop.step, loop.epoch, loop.steps_in_pass, loop.batches_in_pass) == (3, 2, 2, 2)
    loop.begin_pass()
    loop.begin_pass()  # the one before had no step
    assert (loop.epoch, loop.steps_in_pass) == (3, 0)


def test_several_batches_of_a_pass_that_was_broken_off_are_a_test_once_training_goes_on() -> None:
    loop, drawn = trained_loop()
    test = Pass(TEST)
    loop.begin_pass()
    draw(loop, test)
    assert not loop.shows_test(drawn)  # the single one may be of a second loader that each step draws from
    draw(loop, test)
    assert loop.shows_test(drawn)
    loop.discard_test()
    assert (loop.epoch, loop.steps_in_pass, loop.batches_in_pass, loop.loader) == (2, 2, 2, TRAINING)
    assert test not in loop.passes and not loop.has_begun_work


def test_a_pass_that_ended_and_trained_nothing_is_a_test() -> None:
    loop, drawn = trained_loop()
    test = Pass(TEST)
    draw(loop, test, batches=4)
    loop.end_pass(test)
    assert loop.shows_test(None) and loop.shows_test(drawn)


def test_a_pass_with_a_backward_pass_is_no_test() -> None:
    loop, drawn = trained_loop()
    accumulated = Pass(TRAINING)
    draw(loop, accumulated, batches=4)
    loop.has_backward = True
    loop.end_pass(accumulated)
    assert not loop.shows_test(drawn)


def test_only_the_end_of_the_loops_own_pass_before_any_work_ends_an_epoch() -> None:
    loop, drawn = trained_loop()
    assert loop.ends_epoch(drawn)
    assert not loop.ends_epoch(Pass(TEST))
    draw(loop, drawn)
    assert not loop.ends_epoch(drawn)


def test_a_restart_counts_steps_from_the_first_and_keeps_batches_of_passes_that_go_on() -> None:
    loop, drawn = trained_loop()
    loop.restart()
    assert (loop.step, loop.passes) == (0, [])
    assert {step for step, _ in drawn.batches} == {0}
