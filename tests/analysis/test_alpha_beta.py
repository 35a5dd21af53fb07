"""Latency and bandwidth come back from synthetic times of collectives, within their intervals as often as stated."""

import numpy as np
import pytest
from scipy.stats import binom

from multicard.analysis.scaling.alpha_beta import fit
from multicard.analysis.statistics import Interval

SIZES = np.array([4.0**power for power in range(5, 15)])  # 1 KiB to 256 MiB
ALPHA_S, BETA = 20e-6, 150e9


def test_times_without_noise_give_the_true_latency_and_bandwidth() -> None:
    found = fit(SIZES, ALPHA_S + SIZES / BETA)
    assert found.alpha_s.value == pytest.approx(ALPHA_S, rel=1e-6)
    assert found.beta_bytes_per_s.value == pytest.approx(BETA, rel=1e-6)
    assert found.residual == pytest.approx(0, abs=1e-6)
    assert found.time_s([0, 3e9]) == pytest.approx([ALPHA_S, ALPHA_S + 0.02], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha_s", "beta", "noise"), [(ALPHA_S, BETA, 0.05), (200e-6, 2e9, 0.2)])
def test_intervals_hold_the_true_values_as_often_as_stated(alpha_s: float, beta: float, noise: float) -> None:
    generator, trials = np.random.default_rng(0), 200
    inside = np.zeros(2, int)
    for _ in range(trials):
        times = (alpha_s + SIZES / beta) * np.exp(noise * generator.standard_normal(len(SIZES)))
        found = fit(SIZES, times)
        inside += [holds(found.alpha_s, alpha_s), holds(found.beta_bytes_per_s, beta)]
    # At 95%, all but one of a thousand sets has a number within these.
    low, high = binom.ppf([0.0005, 0.9995], trials, 0.95)
    assert all(low <= count <= high for count in inside)


def holds(interval: Interval, truth: float) -> bool:
    assert interval.coverage == 0.95
    return interval.low <= truth <= interval.high


def test_the_residual_is_the_scatter_of_times_around_the_line() -> None:
    # Alternately 10% above and below.
    found = fit(SIZES, (ALPHA_S + SIZES / BETA) * np.where(np.arange(len(SIZES)) % 2, 1.1, 1 / 1.1))
    assert found.residual == pytest.approx(0.1, rel=0.2)


def test_two_sizes_have_no_fit_and_a_bandwidth_that_is_never_reached_no_interval() -> None:
    assert fit([1e3, 1e6], [1e-5, 2e-5]) is None
    found = fit([1.0, 2.0, 4.0, 8.0], [1e-3, 1.001e-3, 0.999e-3, 1e-3])  # latency alone
    assert found.alpha_s.value == pytest.approx(1e-3, rel=0.01)
    beta = found.beta_bytes_per_s
    assert beta.low is None or beta.high > 100 * beta.low
