"""Elapsed time of windows that can be worked out by hand."""

from typing import Any

import pandas as pd
import pytest

from multicard.results.windows import Window


def steps(starts: list[float], durations: list[float], rank: int = 0, **columns: Any) -> pd.DataFrame:
    """Consecutive steps of one rank, of 8 samples each."""
    numbers = range(1, len(starts) + 1)
    rows = {"rank": rank, "epoch": 1, "step": numbers, "start_s": starts, "duration_s": durations, "samples": 8}
    return pd.DataFrame(rows | columns)


def test_a_loader_that_delivers_in_bursts_is_as_fast_as_it_delivers() -> None:
    # Three times one second of waiting for four batches, which take 0.1 s each: 4.2 s for 12 steps.
    durations = [1.1, 0.1, 0.1, 0.1] * 3
    starts = [sum(durations[:number]) for number in range(12)]
    window = Window(steps(starts, durations, data_s=[1.0, 0.0, 0.0, 0.0] * 3))
    assert window.elapsed_s == pytest.approx(4.2)
    assert window.iteration_time_s == pytest.approx(0.35)
    assert window.rate("samples") == pytest.approx(8 * 12 / 4.2)
    assert window.data_share == pytest.approx(3.0 / 4.2)
    assert window.median_iteration_time_s == pytest.approx(0.1)  # as if it were 3.5 times as fast


def test_time_between_steps_counts_and_what_lies_between_epochs_and_windows_does_not() -> None:
    window = Window(steps([0.0, 1.5, 60.0, 61.0], [1.0, 1.0, 1.0, 2.0], epoch=[1, 1, 2, 2]))
    assert window.elapsed_s == pytest.approx(2.5 + 3.0)
    # Steps of another window in the middle of an epoch do not count.
    measured = steps([0.0, 1.0, 9.0, 10.0], [1.0] * 4).assign(step=[1, 2, 8, 9])
    assert Window(measured).elapsed_s == pytest.approx(4.0)
    # The periods are those of the rank that takes longest.
    quick, slow = steps([0.0, 1.0, 2.0], [1.0] * 3), steps([7.0, 8.0, 9.5], [1.0] * 3, rank=1)
    assert Window(pd.concat([quick, slow])).slowest_periods_s.tolist() == [1.0, 1.5, 1.0]


def test_each_epoch_takes_as_long_as_on_its_slowest_rank() -> None:
    # Steps are held up on one rank after the other, which delays both: the longest durations add up to 9.
    first = steps([0.0, 2.0, 3.0, 4.0], [2.0, 1.0, 1.0, 2.5], epoch=[1, 1, 2, 2])
    second = steps([50.0, 51.0, 53.0, 55.0], [1.0, 2.0, 2.0, 1.0], 1, epoch=[1, 1, 2, 2])
    window = Window(pd.concat([first, second]))
    assert window.elapsed_s == pytest.approx(3.0 + 3.5)
    assert window.rate("samples") == pytest.approx(2 * 4 * 8 / 6.5)
