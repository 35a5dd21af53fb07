"""Tests whether step times stayed the same over the measured window, or went on changing.

An average of a run that did not reach a steady state depends on when it was stopped. So A. Georges, D. Buytaert and
L. Eeckhout ("Statistically Rigorous Java Performance Evaluation", OOPSLA 2007) measure only in steady state; how that
is tested here is this project's choice.
"""

from typing import Any

import numpy as np

# Change from the first half of the steps to the second that matters.
LEAST_DRIFT = 0.05
# Rate at which independent step times are called not stationary, at most.
LEVEL = 0.01
# Steps that can be judged.
FEWEST_STEPS = 10
# Values that the test uses; of more steps neighbours are averaged.
MOST_VALUES = 1000
PERMUTATIONS = 999
# Sums of the same values in another order may differ by this share.
ROUNDING = 1e-9
# Time constants of the approaches to another level that are tried, over the length of the window. The last one is
# nearly a straight line.
TIME_CONSTANTS = (0.02, 0.05, 0.1, 0.2, 0.5, 5)

# Columns of measures.csv.
MEASURES = ("drift", "stationary")


def stationarity(times: np.ndarray) -> dict[str, Any]:
    """Return how the time per step changed over a window; a measure that has too few steps is left out.

    `times`: of each step in order, as `Window.slowest_periods_s`. `drift` is the mean of the second half of the steps
    over that of the first half, less 1; of an odd number the step in the middle is in neither. It needs two steps.
    `stationary` is False if the drift matters and the change is statistically significant. It needs `FEWEST_STEPS`.

    >>> stationarity(np.array([1.0, 1.0, 3.0, 1.25, 1.25]))
    {'drift': 0.25}
    """
    half = len(times) // 2
    measures: dict[str, Any] = {}
    if half:
        first_half, second_half = times[:half], times[-half:]
        measures["drift"] = float(second_half.mean() / first_half.mean() - 1)
    if len(times) >= FEWEST_STEPS:
        groups = np.array_split(times, min(len(times), MOST_VALUES))
        means = np.array([group.mean() for group in groups])
        is_changing = abs(measures["drift"]) > LEAST_DRIFT and change_p_value(means) < LEVEL
        measures["stationary"] = not is_changing
    return measures


def change_p_value(times: np.ndarray) -> float:
    """Return the p-value of a change of the mean at any one step, by a permutation test.

    The statistic is the largest absolute cumulative sum of the deviations from the mean (CUSUM). Where consecutive
    steps are alike, such sums stray farther. So the deviations are those of innovations: of what each step adds to its
    prediction from the step before by `autocorrelation`, as M. Robbins, C. Gallagher, R. Lund and A. Aue propose ("Mean
    shift testing in correlated data", Journal of Time Series Analysis 32(5), 2011). Of independent steps they are those
    of the times themselves.
    """
    correlation = autocorrelation(times)
    innovations = times[1:] - correlation * times[:-1] if correlation else times
    deviations = innovations - innovations.mean()
    # Seeded by the times: the same steps give the same answer, and no one set of orders serves all runs.
    rng = np.random.default_rng(deviations.view(np.uint32))
    copies = np.tile(deviations, (PERMUTATIONS, 1))
    permuted = rng.permuted(copies, axis=1)
    observed = _largest_cumulative_sum(deviations)
    is_as_large = _largest_cumulative_sum(permuted) >= observed * (1 - ROUNDING)
    # The order that was observed counts as one of the orders.
    return float((1 + is_as_large.sum()) / (1 + PERMUTATIONS))


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
    if squares <= ROUNDING**2 * (times @ times):
        return 0.0
    estimate = residuals[1:] @ residuals[:-1] / squares
    bias = (7 + 9 * estimate) / len(times)
    return float(np.clip(estimate + bias, 0, 0.99))


def _without_sudden_change(deviations: np.ndarray) -> np.ndarray:
    """Return deviations from the mean before the change that explains most of them, and from the mean after it."""
    count = len(deviations)
    steps_before = np.arange(1, count)
    steps_after = count - steps_before
    cumulative_sums = deviations.cumsum()[:-1]
    # The sum of squares that a change after so many steps explains, but for a constant factor.
    explained = cumulative_sums**2 / (steps_before * steps_after)
    change = 1 + int(np.argmax(explained))
    before, after = deviations[:change], deviations[change:]
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
