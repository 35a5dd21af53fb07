"""Profiled windows that are the measured job with overhead, and such that are another job."""

import numpy as np
import pandas as pd
import pytest

from multicard.analysis.runs.window_comparison import LEVEL, block_length, expected_data_shares, windows_differ
from multicard.analysis.runs.windows import Window


def window(data_s: float, rest_s: float) -> Window:
    """Ten equal steps of one rank."""
    step_s = data_s + rest_s
    starts = [number * step_s for number in range(10)]
    return Window(
        pd.DataFrame(
            {"rank": 0, "step": range(10), "start_s": starts, "duration_s": step_s, "data_s": data_s, "samples": 1}
        )
    )


def simulated(load_s: float, rest_s: float, ahead: bool) -> Window:
    """Steps of a job whose loader takes so long for a batch, and works meanwhile or not."""
    data_s = max(0.0, load_s - rest_s) if ahead else load_s
    return window(data_s, rest_s)


@pytest.mark.parametrize("ahead", [True, False])
def test_a_profiler_that_only_lengthens_the_step_is_no_difference(ahead: bool) -> None:
    for load_s in (0.02, 0.1, 1.0):
        for overhead in (0.0, 0.2, 10.0):
            profiled = simulated(load_s, 0.1 * (1 + overhead), ahead)
            assert not windows_differ(simulated(load_s, 0.1, ahead), profiled)


def test_another_share_of_the_wait_for_data_is_a_difference() -> None:
    # Found in a real run: 265 ms per step with a data share of 26% measured, of 4.9% profiled.
    measured, profiled = window(0.069, 0.196), window(0.010, 0.196)
    assert windows_differ(measured, profiled)
    assert not windows_differ(measured, measured)
    # A loader that starts in the profiled steps.
    assert windows_differ(window(0.01, 0.1), window(0.05, 0.1))
    # Without the phase only the step time counts.
    unknown = (Window(each.steps.assign(data_s=float("nan"))) for each in (window(0, 0.1), window(0, 0.2)))
    assert not windows_differ(*unknown)


def noisy(count: int, step_s: float, rng: np.random.Generator) -> Window:
    """Steps that scatter by 15% and do not wait for data."""
    durations = step_s * rng.normal(1, 0.15, count)
    starts = np.cumsum(durations) - durations
    return Window(
        pd.DataFrame({"rank": 0, "step": range(count), "start_s": starts, "duration_s": durations, "data_s": 0.0})
    )


def test_shorter_steps_are_a_difference_whatever_their_data_share() -> None:
    rng = np.random.default_rng(1)
    assert windows_differ(noisy(40, 0.1, rng), noisy(10, 0.07, rng))
    assert not windows_differ(noisy(40, 0.1, rng), noisy(10, 0.13, rng))


def test_the_shares_that_a_longer_step_explains_lie_between_the_same_pace_and_the_same_wait() -> None:
    assert expected_data_shares(0.2, 0.8, 0.9) == pytest.approx((0.1 / 1.0, 0.2 / 1.1))
    assert expected_data_shares(0.2, 0.8, 2.0) == pytest.approx((0.0, 0.2 / 2.2))
    assert expected_data_shares(0.2, 0.8, 0.8) == pytest.approx((0.2, 0.2))


BURST = 8  # steps


def bursty(count: int, rng: np.random.Generator, wait_s: float = 0.4, overhead: float = 0.0) -> Window:
    """Steps of 50 ms, longer by an overhead, and a wait once in so many, lognormal around a mean, sigma = 0.5.

    A loader that works meanwhile is waited for as much less as the steps of the burst take longer.
    """
    waits = wait_s * rng.lognormal(-0.125, 0.5, count // BURST + 2)
    rest = 0.05 * rng.normal(1, 0.05, count) * (1 + overhead)
    data = np.zeros(len(waits) * BURST)
    data[::BURST] = np.maximum(0.0, waits - BURST * 0.05 * overhead)
    begin = rng.integers(BURST)
    durations = data[begin : begin + count] + rest
    starts = np.cumsum(durations) - durations
    columns = {"start_s": starts, "duration_s": durations, "data_s": durations - rest}
    return Window(pd.DataFrame({"rank": 0, "step": range(count)} | columns))


@pytest.mark.slow
@pytest.mark.parametrize(("profiled_steps", "wait_s", "overhead"), [(64, 0.4, 0.0), (64, 1.0, 0.5)])
def test_equal_windows_of_a_loader_that_delivers_in_bursts_are_rarely_told_apart(
    profiled_steps: int, wait_s: float, overhead: float
) -> None:
    rng = np.random.default_rng(3)
    simulated, found, far = 100, 0, 0
    for _ in range(simulated):
        measured, profiled = bursty(200, rng, wait_s), bursty(profiled_steps, rng, wait_s, overhead)
        found += windows_differ(measured, profiled, BURST)
        far += abs(profiled.data_share - measured.data_share) > 0.05
    assert far / simulated > 0.25  # what chance does to the share
    # Each of the two tests at its level, and three standard errors.
    assert found / simulated <= 2 * LEVEL + 3 * np.sqrt(2 * LEVEL / simulated)


def test_batches_that_piled_up_are_a_difference_although_the_loader_delivers_in_bursts() -> None:
    rng = np.random.default_rng(4)
    pairs = [(bursty(200, rng), bursty(64, rng, 0.08)) for _ in range(20)]  # shares 50% and 17%
    assert sum(windows_differ(measured, profiled, BURST) for measured, profiled in pairs) >= 17
    # Windows that are too short for two bursts are not judged.
    assert windows_differ(bursty(200, rng), bursty(15, rng), BURST) is None
    assert windows_differ(bursty(15, rng), bursty(200, rng), BURST) is None


def test_a_burst_is_as_long_as_what_the_loader_reads_ahead() -> None:
    assert block_length({"profiled_window": {"settling_steps": 16}}) == 8  # twice what the loader reads ahead
    for record in ({"profiled_window": {"settling_steps": 0}}, {"profiled_window": None}, {}):
        assert block_length(record) == 1
