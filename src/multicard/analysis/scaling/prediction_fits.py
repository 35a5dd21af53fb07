"""How a law of the time of a step is fitted to runs, and whether they contradict it; see `prediction`.

A law is fitted to every draw of the measured means at once: arrays are draws × points, or draws × points × parameters.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import fdtrc

from multicard.analysis.statistics import ROUNDING, Interval

DRAWS = 1000  # in pairs, errors of both signs, so that few give steady ends
WAITS = 0.05  # share of a step that waits for data from which on the loader sets its pace
SAME = 0.05  # relative difference of samples or times up to which they are the same
REJECTED = 0.01  # p-value up to which runs contradict a law; at 5% the true one would be lost as often as that
TWO_SIDED = 1.96  # standard errors of a 95% interval

Array = np.ndarray


@dataclass(frozen=True)
class Point:
    """Runs of one configuration on one number of devices.

    Attributes
    ----------
    count
        What is predicted over: devices of a node, or nodes with equally many devices.
    local
        Devices of a node.
    samples
        Of a device and step.
    step_s, waited_s
        Of each repeat: seconds of a step, and of them the wait for data, unless loading is a part of the step itself.
    """

    count: int
    local: int
    samples: float
    step_s: tuple[float, ...]
    waited_s: tuple[float, ...]

    @property
    def busy_s(self) -> Array:
        """Seconds of a step without the wait, by repeat."""
        return np.array(self.step_s) - np.array(self.waited_s)

    @property
    def waits(self) -> bool:
        """Whether the loader sets the pace."""
        return float(np.mean(self.waited_s)) >= WAITS * float(np.mean(self.step_s))


@dataclass(frozen=True)
class Fitted:
    """A law fitted to every draw: seconds at what is asked for (draws), at the points (of the first draw)."""

    words: str
    target: Array
    at_points: Array
    parameters: int
    compute: float = 0.0
    uncertain: Array | float = 0.0  # standard error at the points, beside that of the runs
    deviation: float = 0.0  # the largest from the runs, relative, of a law that they contradict
    only_bounds: bool = False  # whether another law that holds sets the value


def drawn(values: Sequence[Array], rng: np.random.Generator) -> tuple[Array, float | None]:
    """Means of each point (draws × points), the first draw as measured; and the relative scatter of repeats.

    The scatter is None without repeats; then all draws are as measured.
    """
    means = np.array([each.mean() for each in values])
    freedom = sum(len(each) - 1 for each in values)
    if freedom == 0:
        return np.tile(means, (DRAWS + 1, 1)), None
    squares = sum(((each / mean - 1) ** 2).sum() for each, mean in zip(values, means, strict=True))
    noise = float(np.sqrt(squares / freedom))
    spread = noise * np.sqrt(freedom / rng.chisquare(freedom, (DRAWS // 2, 1)))
    errors = spread * rng.standard_normal((DRAWS // 2, len(values))) / np.sqrt([len(each) for each in values])
    return means * np.vstack([np.ones(len(values)), 1 + errors, 1 - errors]), noise


def admitted(fitted: Sequence[Fitted], points: Sequence[Point], means: Array, noise: float | None) -> list[Fitted]:
    """Those laws that deviate from the means no more than repeats scatter; without repeats, or of none, the nearest."""
    counts = np.array([len(each.step_s) for each in points])
    deviations = [(each.at_points / means - 1) ** 2 for each in fitted]
    left = [float((counts * each).sum()) for each in deviations]
    repeats = int((counts - 1).sum())
    if noise is None or repeats == 0:
        tested = all(each.parameters < len(points) for each in fitted)
        return [fitted[int(np.argmin(left))]] if tested else list(fitted)
    found = []
    for each, squares in zip(fitted, deviations, strict=True):
        free = len(points) - each.parameters
        variances = max(noise, ROUNDING) ** 2 / counts + (each.uncertain / means) ** 2
        if free < 1 or float(fdtrc(free, repeats, (squares / variances).sum() / free)) > REJECTED:
            found.append(each)
    if found:
        return found
    nearest = fitted[int(np.argmin(left))]
    deviation = float(np.sqrt(max(deviations[int(np.argmin(left))])))
    return [replace(nearest, words=f"{nearest.words} (deviates from the runs)", deviation=deviation)]


def least_squares(matrix: Array, values: Array, weights: Array) -> Array:
    """Coefficients ≥ 0 with the least squares of relative errors: of each draw, draws × parameters.

    Of the few parameters every subset is fitted, and the best without negative ones taken: Charles Lawson and Richard
    Hanson, Solving Least Squares Problems, chapter 23.
    """
    scale = weights / values[0]
    alike = matrix.strides[0] == 0  # one matrix for all draws, inverted once
    a, y = (matrix[:1] if alike else matrix) * scale[:, None], values * scale
    draws, parameters = len(y), a.shape[2]
    best, found = np.full(draws, np.inf), np.zeros((draws, parameters))
    for size in range(parameters, 0, -1):
        for chosen in itertools.combinations(range(parameters), size):
            part = a[:, :, chosen]
            theta = (np.linalg.pinv(part) @ y[:, :, None])[:, :, 0]
            left = ((y - (part @ theta[:, :, None])[:, :, 0]) ** 2).sum(axis=1)
            better = (theta >= 0).all(axis=1) & (left < best - 1e-12)
            best = np.where(better, left, best)
            whole = np.zeros((draws, parameters))
            whole[:, chosen] = theta
            found = np.where(better[:, None], whole, found)
    return found


def standard_error(interval: Interval) -> float:
    """Standard error of the logarithm; 0 where the interval has no ends."""
    if interval.low is None or not 0 < interval.low < interval.high < np.inf:
        return 0.0
    return float(np.log(interval.high / interval.low)) / (2 * TWO_SIDED)
