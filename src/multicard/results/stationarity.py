"""Test whether step times stayed the same over the measured window, or went on changing.

The average of a run that did not reach a steady state depends on when the run was stopped. So A. Georges, D. Buytaert
and L. Eeckhout ("Statistically Rigorous Java Performance Evaluation", OOPSLA 2007) measure only in steady state. The
test of steadiness in this module is not theirs.
"""

from typing import NamedTuple

import numpy as np

# A drift of at most this share, up or down, does not matter: the window counts as stationary without a test.
LEAST_DRIFT = 0.05
# Significance level: a window is not stationary if the p-value is below this. Of windows with independent step times
# and no change, at most this share is called not stationary.
LEVEL = 0.01
# Windows with fewer steps than this are not tested.
FEWEST_STEPS = 10
# Most values that the test uses. If there are more steps, times of neighbouring steps are averaged.
MOST_VALUES = 1000
# Number of random orders that the test compares with the observed order.
PERMUTATIONS = 999
# Largest relative difference that rounding makes between sums of the same values in different orders.
ROUNDING = 1e-9
# A step time may approach another level exponentially. These time constants are tried, as shares of the window. The
# approach with the last one is nearly a straight line.
TIME_CONSTANTS = (0.02, 0.05, 0.1, 0.2, 0.5, 5)


class Stationarity(NamedTuple):
    """How the time per step changed over a window. Made by `stationarity`."""

    # Mean of the second half of the steps divided by the mean of the first half, minus 1. If the number of steps is
    # odd, the middle step is in neither half. None for fewer than two steps.
    drift: float | None
    # False if the drift is above `LEAST_DRIFT`, up or down, and the change is statistically significant. None for fewer
    # than `FEWEST_STEPS`.
    stationary: bool | None


def stationarity(times: np.ndarray) -> Stationarity:
    """Return the drift of the time per step over a window, and whether the window was stationary.

    `times`: the seconds of each step in order, such as `Window.slowest_periods_s`.

    >>> stationarity(np.array([1.0, 1.0, 3.0, 1.25, 1.25]))
    Stationarity(drift=0.25, stationary=None)
    """
    half = len(times) // 2
    if not half:
        return Stationarity(None, None)
    first_half = times[:half]
    second_half = times[-half:]
    ratio = second_half.mean() / first_half.mean()
    drift = float(ratio - 1)
    if len(times) < FEWEST_STEPS:
        return Stationarity(drift, None)
    matters = abs(drift) > LEAST_DRIFT
    # The permutation test is slow, so it runs only if the change is large enough to matter.
    is_changing = matters and change_p_value(_averaged(times)) < LEVEL
    return Stationarity(drift, not is_changing)


def _averaged(times: np.ndarray) -> np.ndarray:
    """Return the means of at most `MOST_VALUES` groups of neighbouring steps, as equal in size as possible."""
    group_count = min(len(times), MOST_VALUES)
    groups = np.array_split(times, group_count)
    return np.array([group.mean() for group in groups])


def change_p_value(times: np.ndarray) -> float:
    """Return the p-value of the hypothesis that the mean changes at no step, by a permutation test.

    The statistic is the largest absolute cumulative sum of the deviations from the mean (CUSUM). If consecutive steps
    have similar times, this statistic is larger even without a change. So the test uses innovations instead of times.
    An innovation is the time of a step minus its prediction, which is the time of the step before × `autocorrelation`
    (M. Robbins, C. Gallagher, R. Lund and A. Aue, "Mean shift testing in correlated data", Journal of Time Series
    Analysis 32(5), 2011). If the correlation is 0, the innovations are the times.
    """
    correlation = autocorrelation(times)
    innovations = times
    if correlation:
        predictions = correlation * times[:-1]
        innovations = times[1:] - predictions
    deviations = innovations - innovations.mean()
    # The random orders depend on the times, so that the same steps give the same p-value, and different runs are tested
    # with different orders.
    rng = np.random.default_rng(deviations.view(np.uint32))
    copies = np.tile(deviations, (PERMUTATIONS, 1))
    permuted = rng.permuted(copies, axis=1)
    threshold = _largest_cumulative_sum(deviations) * (1 - ROUNDING)
    is_as_large = _largest_cumulative_sum(permuted) >= threshold
    # The observed order counts as one of the orders, so the p-value is never 0.
    as_large_count = 1 + is_as_large.sum()
    return float(as_large_count / (1 + PERMUTATIONS))


def _largest_cumulative_sum(deviations: np.ndarray) -> np.ndarray:
    """Return the largest absolute value of the cumulative sums along the last axis."""
    cumulative_sums = deviations.cumsum(axis=-1)
    return np.abs(cumulative_sums).max(axis=-1)


def autocorrelation(times: np.ndarray) -> float:
    """Return the correlation of each value with the next one, from 0 to 0.99, of values whose mean may change.

    A change of the mean would look like correlation, so it is subtracted first. A sudden change and exponential
    approaches to another level are tried, and the one that explains most is subtracted.

    The estimate r from the n remaining values is too low by about (7 + 9r) / n, so this bias is added. If a straight
    line of least squares were subtracted, the bias would be (2 + 4r) / n (F. H. C. Marriott and J. A. Pope, "Bias in
    the estimation of autocorrelations", Biometrika 41, 1954). It is larger here because the change is chosen from
    several; 7 and 9 were found by simulation.

    A negative correlation, which a loader that delivers in bursts causes, is returned as 0. This makes the test
    conservative.
    """
    deviations = times - times.mean()
    approaches = [_without_approach(deviations, time_constant) for time_constant in TIME_CONSTANTS]
    candidates = [_without_sudden_change(deviations), *approaches]
    residuals = min(candidates, key=lambda values: values @ values)
    squares = residuals @ residuals
    # Without the change that was subtracted, all times are equal. The residuals come from rounding and have no
    # correlation.
    if squares <= ROUNDING**2 * (times @ times):
        return 0.0
    products = residuals[1:] @ residuals[:-1]
    estimate = products / squares
    bias = (7 + 9 * estimate) / len(times)
    return float(np.clip(estimate + bias, 0, 0.99))


def _without_sudden_change(deviations: np.ndarray) -> np.ndarray:
    """Return the values minus the mean before a sudden change, or minus the mean after it.

    The change is at the step at which it explains most. `deviations`: the values minus their mean.
    """
    count = len(deviations)
    steps_before = np.arange(1, count)
    steps_after = count - steps_before
    cumulative_sums = deviations.cumsum()[:-1]
    # For each number of steps before the change: the sum of squares that the change explains, divided by a constant.
    explained = cumulative_sums**2 / (steps_before * steps_after)
    change = 1 + int(np.argmax(explained))
    before = deviations[:change]
    after = deviations[change:]
    return np.concatenate([before - before.mean(), after - after.mean()])


def _without_approach(deviations: np.ndarray, time_constant: float) -> np.ndarray:
    """Return deviations minus their least-squares fit by an exponential approach to another level.

    `time_constant`: the number of steps in which the distance from that level falls to 1/e, divided by the number of
    all steps.
    """
    count = len(deviations)
    steps = np.arange(count)
    curve = np.exp(-steps / (time_constant * count))
    curve -= curve.mean()
    fit = curve * (curve @ deviations) / (curve @ curve)
    return deviations - fit
