"""Whether step times stayed the same over the measured window, or went on changing.

An average of a run that did not reach a steady state depends on when it was stopped. So A. Georges, D. Buytaert and
L. Eeckhout ("Statistically Rigorous Java Performance Evaluation", OOPSLA 2007) measure only in steady state; how that
is tested here is this project's choice.
"""

from typing import Any

import numpy as np

DRIFT = 0.05  # change from the first half to the second that matters
LEVEL = 0.01  # rate at which independent step times are called not stationary, at most
FEWEST = 10  # steps that can be judged
MOST = 1000  # values that are looked at; of more steps neighbours are averaged
RESAMPLES = 999
ROUNDING = 1e-9  # by which sums of the same values in another order may differ
APPROACHES = (0.02, 0.05, 0.1, 0.2, 0.5, 5)  # time constants over the length of the window; the last is nearly a line

MEASURES = ("drift", "stationary")


def stationarity(times: np.ndarray) -> dict[str, Any]:
    """Measures of how much the time per step changed over a window; without what too few steps do not tell.

    `times`: of each step, in order: `windows.Window.pace_s`.
    """
    half = len(times) // 2
    found: dict[str, Any] = {}
    if half:  # an odd step in the middle is left out
        found["drift"] = float(times[-half:].mean() / times[:half].mean() - 1)
    if len(times) >= FEWEST:
        fewer = np.array([part.mean() for part in np.array_split(times, min(len(times), MOST))])
        found["stationary"] = not (abs(found["drift"]) > DRIFT and change_p_value(fewer) < LEVEL)
    return found


def change_p_value(times: np.ndarray) -> float:
    """p-value of a change of the mean, at whatever step: a permutation test of the largest cumulative sum (CUSUM).

    Where consecutive steps are alike, sums stray farther. So the test is of what each step adds to the prediction from
    the one before by `autocorrelation`, as M. Robbins, C. Gallagher, R. Lund and A. Aue propose ("Mean shift testing in
    correlated data", Journal of Time Series Analysis 32(5), 2011), at independent steps of the times themselves.
    """
    correlation = autocorrelation(times)
    innovations = times[1:] - correlation * times[:-1] if correlation else times
    deviations = innovations - innovations.mean()
    # Seeded by the times: the same steps give the same answer, and no one set of orders serves all runs.
    rng = np.random.default_rng(deviations.view(np.uint32))
    shuffled = rng.permuted(np.tile(deviations, (RESAMPLES, 1)), axis=1)
    observed, largest = (np.abs(values.cumsum(axis=-1)).max(axis=-1) for values in (deviations, shuffled))
    return float((1 + (largest >= observed * (1 - ROUNDING)).sum()) / (1 + RESAMPLES))


def autocorrelation(times: np.ndarray) -> float:
    """Correlation of each value with the next, of values that scatter around a mean that may change; from 0 to 0.99.

    The change is taken out first, since it would count as correlation: that of two, a sudden one or an exponential
    approach to another level, which leaves the smaller squares. The estimate of the rest is too low by about
    (7 + 9r) / n for n values and a correlation r, which is added. For a line of least squares it were (2 + 4r) / n
    (F. H. C. Marriott and J. A. Pope, "Bias in the estimation of autocorrelations", Biometrika 41, 1954), and choosing
    the change lowers it further, by how much was found by simulation. Negative values, as of a loader that delivers in
    bursts, count as none, which is on the safe side.
    """
    count, deviations = len(times), times - times.mean()
    rest = min(_without_change(deviations), key=lambda values: values @ values)
    squares = rest @ rest
    if squares <= ROUNDING**2 * (times @ times):
        return 0.0
    found = rest[1:] @ rest[:-1] / squares
    return float(np.clip(found + (7 + 9 * found) / count, 0, 0.99))


def _without_change(deviations: np.ndarray) -> list[np.ndarray]:
    """Deviations from the mean, less what the best of each kind of change explains by least squares."""
    count = len(deviations)
    before = np.arange(1, count)
    at = 1 + int(np.argmax(deviations.cumsum()[:-1] ** 2 / (before * (count - before))))
    parts = np.split(deviations, [at])
    found = [np.concatenate([part - part.mean() for part in parts])]
    for duration in APPROACHES:
        curve = np.exp(-np.arange(count) / (duration * count))
        curve -= curve.mean()
        found.append(deviations - curve * (curve @ deviations) / (curve @ curve))
    return found
