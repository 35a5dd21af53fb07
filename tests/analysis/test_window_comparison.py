"""Profiled windows that are the measured job with overhead, and such that are another job."""

import numpy as np
import pandas as pd
import pytest

from multicard.analysis.window_comparison import LEVEL, expected_data_shares, windows_differ
from multicard.analysis.windows import Window


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
@pytest.mark.parametrize("load_s", [0.02, 0.1, 0.25, 1.0])
@pytest.mark.parametrize("overhead", [0.0, 0.03, 0.2, 1.0, 10.0])
def test_a_profiler_that_only_lengthens_the_step_is_no_difference(ahead: bool, load_s: float, overhead: float) -> None:
    assert not windows_differ(simulated(load_s, 0.1, ahead), simulated(load_s, 0.1 * (1 + overhead), ahead))


def test_batches_that_piled_up_before_the_profiled_steps_are_a_difference() -> None:
    # Found in a real run: 265 ms per step with a data share of 26% measured, of 4.9% profiled.
    measured, profiled = window(0.069, 0.196), window(0.010, 0.196)
    assert windows_differ(measured, profiled)
    assert not windows_differ(measured, measured)


def test_a_loader_that_starts_in_the_profiled_steps_is_a_difference() -> None:
    assert windows_differ(window(0.01, 0.1), window(0.05, 0.1))


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


def test_equal_steps_that_scatter_are_told_apart_as_rarely_as_stated() -> None:
    rng = np.random.default_rng(2)
    simulated = 400
    found = sum(windows_differ(noisy(40, 0.1, rng), noisy(10, 0.1, rng)) for _ in range(simulated))
    assert found / simulated <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / simulated)


def test_the_shares_that_a_longer_step_explains_lie_between_the_same_pace_and_the_same_wait() -> None:
    assert expected_data_shares(0.2, 0.8, 0.9) == pytest.approx((0.1 / 1.0, 0.2 / 1.1))
    assert expected_data_shares(0.2, 0.8, 2.0) == pytest.approx((0.0, 0.2 / 2.2))
    assert expected_data_shares(0.2, 0.8, 0.8) == pytest.approx((0.2, 0.2))


def test_a_run_without_the_phase_data_differs_only_by_its_step_time() -> None:
    measured, profiled = (Window(each.steps.assign(data_s=float("nan"))) for each in (window(0, 0.1), window(0, 0.2)))
    assert not windows_differ(measured, profiled)
