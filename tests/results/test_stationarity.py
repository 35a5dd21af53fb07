"""Stationarity of simulated runs whose truth is known, by fixed seeds."""

import numpy as np
import pytest
from scipy.signal import lfilter

from multicard.results.stationarity import FEWEST_STEPS, LEVEL, autocorrelation, change_p_value, stationarity


def noise(kind: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Independent step times: normal, with a long tail, or with an occasional very long step."""
    if kind == "normal":
        return rng.normal(1.0, 0.2, count)
    if kind == "long-tailed":
        return rng.lognormal(0.0, 0.6, count)
    return np.where(rng.random(count) < 0.1, 10.0, 1.0) + rng.normal(0, 0.01, count)


def autoregressive(correlation: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Normal values of mean 1 and standard deviation 0.2, each correlated with the one before."""
    started = 200  # values that are dropped, in which the process forgets its start
    innovations = rng.normal(0, 0.2 * np.sqrt(1 - correlation**2), started + count)
    return 1 + lfilter([1], [1, -correlation], innovations)[started:]


# What is stated in docs/measuring.md; the last is where a slow oscillation cannot be told from drift.
@pytest.mark.rare
@pytest.mark.parametrize(("correlation", "stated"), [(0.0, 0.01), (0.3, 0.02), (0.6, 0.03), (0.9, 0.07)])
@pytest.mark.parametrize("count", [60, 200])
def test_steady_runs_whose_steps_are_correlated_are_called_not_stationary_as_rarely_as_stated(
    correlation: float, stated: float, count: int
) -> None:
    rng = np.random.default_rng(5)
    simulated = 500
    found = [change_p_value(autoregressive(correlation, count, rng)) < LEVEL for _ in range(simulated)]
    assert np.mean(found) <= stated + 3 * np.sqrt(stated * (1 - stated) / simulated)  # three standard errors


def test_the_autocorrelation_is_not_underestimated_and_a_change_is_none() -> None:
    rng = np.random.default_rng(6)
    for correlation in (0.0, 0.3, 0.6):
        found = [autocorrelation(autoregressive(correlation, 60, rng)) for _ in range(200)]
        assert correlation - 0.04 < np.mean(found) < correlation + 0.13
    for shape in (np.where(np.arange(60) < 20, 1.0, 2.0), np.linspace(1, 2, 60), 1 + np.exp(-np.arange(60) / 12)):
        assert np.mean([autocorrelation(shape + rng.normal(0, 0.05, 60)) for _ in range(50)]) < 0.2


@pytest.mark.parametrize(
    "shape",
    [
        1.0 + 0.3 * np.linspace(0, 1, 60),  # a processor that gets hotter and slower
        np.where(np.arange(60) < 6, 2.0, 1.0),  # a warm-up that goes on
        np.where(np.arange(60) < 20, 1.0, 1.2),  # another job that starts
        1.0 + np.exp(-np.arange(60) / 10),  # caches that fill
    ],
    ids=["slower and slower", "warm-up", "step", "decay"],
)
def test_changes_beyond_the_noise_are_found(shape: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    found = [stationarity(shape * rng.normal(1, 0.05, len(shape))).stationary for _ in range(20)]
    assert sum(found) <= 1


def test_bursts_of_a_loader_small_changes_and_equal_steps_do_not_matter() -> None:
    assert stationarity(np.tile([1.1, 0.1, 0.1, 0.1], 25)).stationary is True
    small = 1 + 0.04 * np.linspace(0, 1, 100)
    assert change_p_value(small) < LEVEL and stationarity(small).stationary is True
    one_long = np.random.default_rng(4).normal(1, 0.01, 50)
    one_long[30] = 9.0
    assert stationarity(one_long).stationary is True
    assert change_p_value(np.full(20, 0.1)) == 1


def test_the_drift_is_that_of_a_straight_line() -> None:
    # Means of the halves: 1.2475 and 1.7525 seconds.
    found = stationarity(np.linspace(1, 2, 100))
    assert found.drift == pytest.approx((1 + 74.5 / 99) / (1 + 24.5 / 99) - 1)


def test_few_steps_are_not_judged() -> None:
    found = stationarity(np.linspace(1, 2, FEWEST_STEPS - 1))
    assert found.stationary is None and found.drift > 0
    assert stationarity(np.array([1.0])) == (None, None)


def test_long_runs_are_judged_by_means_of_neighbours() -> None:
    times = np.tile([1.0, 2.0], 20_000)
    assert stationarity(times).stationary is True
    times[20_000:] *= 1.5
    found = stationarity(times)
    assert found.stationary is False and found.drift == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"), [("normal", FEWEST_STEPS), ("normal", 40), ("long-tailed", 40), ("rare long steps", 40)]
)
def test_steady_runs_are_called_not_stationary_as_rarely_as_stated(kind: str, count: int) -> None:
    rng = np.random.default_rng(1)
    simulated = 400
    found = [stationarity(noise(kind, rng, count)) for _ in range(simulated)]
    rate = sum(not each.stationary for each in found) / simulated
    assert rate <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / simulated)  # three standard errors
