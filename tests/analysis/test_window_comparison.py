"""Profiled windows that are the measured job with overhead, and such that are another job."""

import pandas as pd
import pytest

from multicard.analysis.window_comparison import expected_data_shares, windows_differ
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
    # Found in a real run: 265 ms per step with a data share of 26 % measured, of 4.9 % profiled.
    measured, profiled = window(0.069, 0.196), window(0.010, 0.196)
    assert windows_differ(measured, profiled)
    assert not windows_differ(measured, measured)


def test_a_loader_that_starts_in_the_profiled_steps_is_a_difference() -> None:
    assert windows_differ(window(0.01, 0.1), window(0.05, 0.1))


def test_shorter_steps_are_a_difference_whatever_their_data_share() -> None:
    assert windows_differ(window(0.0, 0.1), window(0.0, 0.09))
    assert not windows_differ(window(0.0, 0.1), window(0.0, 0.097))


def test_the_shares_that_a_longer_step_explains_lie_between_the_same_pace_and_the_same_wait() -> None:
    assert expected_data_shares(0.2, 0.8, 0.9) == pytest.approx((0.1 / 1.0, 0.2 / 1.1))
    assert expected_data_shares(0.2, 0.8, 2.0) == pytest.approx((0.0, 0.2 / 2.2))
    assert expected_data_shares(0.2, 0.8, 0.8) == pytest.approx((0.2, 0.2))


def test_a_run_without_the_phase_data_differs_only_by_its_step_time() -> None:
    measured, profiled = (Window(each.steps.assign(data_s=float("nan"))) for each in (window(0, 0.1), window(0, 0.2)))
    assert not windows_differ(measured, profiled) and windows_differ(profiled, measured)
