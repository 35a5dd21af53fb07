"""Tests whether step times stayed the same over the measured window, or went on changing.

An average of a run that did not reach a steady state depends on when it was stopped. So A. Georges, D. Buytaert and
L. Eeckhout ("Statistically Rigorous Java Performance Evaluation", OOPSLA 2007) measure only in steady state; how that
is tested here is this project's choice.
"""

from typing import Any

import numpy as np

# A smaller change from the first half of the steps to the second, as a share, does not matter.
LEAST_DRIFT = 0.05
# Significance level: at most this share of windows with independent step times is called not stationary.
LEVEL = 0.01
# Windows with fewer steps are not tested.
FEWEST_STEPS = 10
# Values that the test uses at most. The times of neighbouring steps are averaged where there are more.
MOST_VALUES = 1000
PERMUTATIONS = 999
# The relative difference that rounding can make between sums of the same values in different orders.
ROUNDING = 1e-9
# Time constants of the tried exponential approaches to another level, as shares of the window. The last approach is
# nearly a straight line.
TIME_CONSTANTS = (0.02, 0.05, 0.1, 0.2, 0.5, 5)

# Columns of measures.csv.
MEASURES = ("drift", "stationary")


def stationarity(times: np.ndarray) -> dict[str, Any]:
    """Return the `drift` of the time per step over a window, and whether it was `stationary`.

    `times`: the seconds of each step in order, as `Window.slowest_periods_s`. `drift` is the mean of the second half of
    the steps over the mean of the first half, less 1; with an odd number of steps the middle one is in neither half.
    `stationary` is False if the drift is above `LEAST_DRIFT` and the change is statistically significant. A measure
    with too few steps is left out: `drift` needs two steps, `stationary` needs `FEWEST_STEPS`.

    >>> stationarity(np.array([1.0, 1.0, 3.0, 1.25, 1.25]))
    {'drift': 0.25}
    """
    half = len(times) // 2
    measures: dict[str, Any] = {}
    if half:
        first_half = times[:half]
        second_half = times[-half:]
        ratio = second_half.mean() / first_half.mean()
        measures["drift"] = float(ratio - 1)
    if len(times) >= FEWEST_STEPS:
        matters = abs(measures["drift"]) > LEAST_DRIFT
        # The permutation test is slow, so it runs only if the change is large enough to matter.
        is_changing = matters and change_p_value(_averaged(times)) < LEVEL
        measures["stationary"] = not is_changing
    return measures


def _averaged(times: np.ndarray) -> np.ndarray:
    """Return the means of at most `MOST_VALUES` groups of neighbouring steps, as equal in size as possible."""
    group_count = min(len(times), MOST_VALUES)
    groups = np.array_split(times, group_count)
    return np.array([group.mean() for group in groups])


def change_p_value(times: np.ndarray) -> float:
    """Return the p-value of a change of the mean at any one step, by a permutation test.

    The statistic is the largest absolute cumulative sum of the deviations from the mean (CUSUM). Where consecutive
    steps are alike, such sums stray farther even without a change. So the test uses the deviations of the innovations:
    an innovation is the time of a step less its prediction from the step before by `autocorrelation`, as M. Robbins,
    C. Gallagher, R. Lund and A. Aue propose ("Mean shift testing in correlated data", Journal of Time Series Analysis
    32(5), 2011). For independent steps the innovations are the times.
    """
    correlation = autocorrelation(times)
    innovations = times
    if correlation:
        predictions = correlation * times[:-1]
        innovations = times[1:] - predictions
    deviations = innovations - innovations.mean()
    # Seeded by the times: the same steps give the same answer, and no one set of orders serves all runs.
    rng = np.random.default_rng(deviations.view(np.uint32))
    copies = np.tile(deviations, (PERMUTATIONS, 1))
    permuted = rng.permuted(copies, axis=1)
    threshold = _largest_cumulative_sum(deviations) * (1 - ROUNDING)
    is_as_large = _largest_cumulative_sum(permuted) >= threshold
    # The observed order counts as one of the orders, so the p-value is never 0.
    as_large_count = 1 + is_as_large.sum()
    return float(as_large_count / (1 + PERMUTATIONS))


def _largest_cumulative_sum(deviations: np.ndarray) -> np.ndarray:
    """Return the largest absolute cumulative sum along the last axis."""
    cumulative_sums = deviations.cumsum(axis=-1)
    return np.abs(cumulative_sums).max(axis=-1)


def autocorrelation(times: np.ndarray) -> float:
    """Return the correlation of each value with the next one, from 0 to 0.99, of values whose mean may change.

    A change of the mean would count as correlation, so it is taken out first: the one that explains most, of a sudden
    change and exponential approaches to another level. The estimate r from the n remaining values is too low by about
    (7 + 9r) / n, which is added. For a line of least squares it would be (2 + 4r) / n (F. H. C. Marriott and
    J. A. Pope, "Bias in the estimation of autocorrelations", Biometrika 41, 1954). Choosing the change lowers it
    further; by how much was found by simulation.

    A negative correlation, as of a loader that delivers in bursts, counts as none, which makes the test conservative.
    """
    deviations = times - times.mean()
    approaches = [_without_approach(deviations, time_constant) for time_constant in TIME_CONSTANTS]
    candidates = [_without_sudden_change(deviations), *approaches]
    residuals = min(candidates, key=lambda values: values @ values)
    squares = residuals @ residuals
    # The times are equal but for a change that is taken out: what remains is rounding, which has no correlation.
    if squares <= ROUNDING**2 * (times @ times):
        return 0.0
    products = residuals[1:] @ residuals[:-1]
    estimate = products / squares
    bias = (7 + 9 * estimate) / len(times)
    return float(np.clip(estimate + bias, 0, 0.99))


def _without_sudden_change(deviations: np.ndarray) -> np.ndarray:
    """Return deviations from the mean before the change that explains most of them, and from the mean after it."""
    count = len(deviations)
    steps_before = np.arange(1, count)
    steps_after = count - steps_before
    cumulative_sums = deviations.cumsum()[:-1]
    # The sum of squares that a change after each number of steps explains, but for a constant factor.
    explained = cumulative_sums**2 / (steps_before * steps_after)
    change = 1 + int(np.argmax(explained))
    before = deviations[:change]
    after = deviations[change:]
    return np.concatenate([before - before.mean(), after - after.mean()])


def _without_approach(deviations: np.ndarray, time_constant: float) -> np.ndarray:
    """Return deviations less their least-squares fit by an exponential approach to another level.

    `time_constant`: the steps in which the distance from that level falls to 1/e, over the number of all steps.
    """
    count = len(deviations)
    steps = np.arange(count)
    curve = np.exp(-steps / (time_constant * count))
    curve -= curve.mean()
    fit = curve * (curve @ deviations) / (curve @ curve)
    return deviations - fit
