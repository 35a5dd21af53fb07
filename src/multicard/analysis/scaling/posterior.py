"""Draws from what measured times leave open of a curve with a few unknowns.

The curve gives log times at the points and at what is asked for, but for a common level. Means at the points deviate
from it in two ways: by the scatter of their repeats, and by a random walk, which leaves the curve the further the more
often the devices double. So an extrapolation is the less certain the further it goes, whatever curve fits the points.

All unknowns are functions of standard normal numbers. These are drawn by adaptive importance sampling: Olivier Cappé,
Arnaud Guillin, Jean-Michel Marin and Christian Robert, Population Monte Carlo, JCGS 13(4), 2004. Level and walk are
normal given the rest, and drawn exactly, but for the walk beyond the runs (`Prior.freedom_beyond`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtr

DRAWS = 4096
STAGES = 4  # of adaptation
FREEDOM = 5  # of the t distribution that proposes draws
FARTHEST = 6.0  # standard deviations of the prior
ENOUGH = 200  # effective draws from which a proposal is adapted

Array = np.ndarray


@dataclass(frozen=True)
class Prior:
    """What is known before anything is measured; docs/choosing.md says from which public tables.

    Each median, as a share of a step, is followed by the standard deviation of its logarithm.
    """

    growth: float = 0.01  # what the first doubling of the devices adds to a step
    growth_spread: float = 2.0
    hidden: float = 0.15  # communication of two devices, hidden or not
    hidden_spread: float = 1.0
    # The random walk's standard deviation over one doubling, beside the scatter of repeats: jobs whose repeats scatter
    # more deviate more, so that both add up in squares.
    deviation: float = 0.005
    deviation_spread: float = 1.0
    # What the walk does beyond the runs is as of a t distribution with so many degrees of freedom, with tails far
    # heavier than a normal one's: one doubling may bring what no smaller number of devices showed, as a slower link
    # between more devices.
    freedom_beyond: float = 2.0
    noise: float = 0.01  # relative scatter of repeats, and the degrees of freedom that this is worth
    noise_freedom: float = 2.0


@dataclass(frozen=True)
class Draws:
    """Equally likely draws."""

    target: Array  # log time at what is asked for
    level: Array  # log time at the first point
    deviation: Array  # standard deviation of the random walk over one doubling
    expected: Array  # its median before the measurement


def draw(
    repeats: Sequence[Array],
    curve: Callable[[Array], Array],
    places: Sequence[Array],
    dimensions: int,
    prior: Prior,
    at_most: Array | None = None,
) -> Draws | None:
    """Draw the time that is asked for; None where no draw agrees with `at_most`.

    `repeats`: seconds of each repeat, by point. `curve`: log times (draws × points and what is asked for), relative to
    one another, by standard normal numbers (draws × dimensions). `places`: coordinates of the points and of what is
    asked for, in doublings, the first point at 0; of every coordinate in which the walk deviates. `at_most`: log times
    that further places of the curve, which then follow what is asked for, do not exceed.
    """
    points = len(repeats)
    means = np.array([np.log(each).mean() for each in repeats])
    counts = np.array([len(each) for each in repeats])
    squares = sum(float(((np.log(own) - mean) ** 2).sum()) for own, mean in zip(repeats, means, strict=True))
    freedom = counts.sum() - points + prior.noise_freedom
    # Covariance of a random walk that goes both ways from 0, and what makes that and the scatter diagonal together.
    walk = sum((abs(x)[:, None] + abs(x) - abs(x[:, None] - x)) / 2 for x in places)
    root = np.sqrt(counts)
    spread, vectors = np.linalg.eigh(root[:, None] * walk[:points, :points] * root)
    basis = vectors.T * root
    toward, ones = basis @ walk[points, :points], basis.sum(axis=1)

    def parts(z: Array) -> tuple[Array, ...]:
        noise = (squares + prior.noise_freedom * prior.noise**2) / chdtri(freedom, ndtr(z[:, 0]))
        expected = np.sqrt(prior.deviation**2 + noise)
        deviation = expected * np.exp(prior.deviation_spread * z[:, 1])
        steps = curve(z[:, 2:])
        variance = deviation[:, None] ** 2 * spread + noise[:, None]
        left = (means - steps[:, :points]) @ basis.T
        precision = (ones**2 / variance).sum(axis=1)
        level = (ones * left / variance).sum(axis=1) / precision
        left_over = ((left - level[:, None] * ones) ** 2 / variance).sum(axis=1)
        likelihood = -0.5 * (left_over + np.log(variance).sum(axis=1) + np.log(precision))
        if at_most is not None:
            exceeds = (steps[:, points + 1 :] + level[:, None] > at_most).any(axis=1)
            likelihood = np.where(exceeds, -np.inf, likelihood)
        return likelihood, expected, deviation, steps, variance, left, precision, level

    z = _importance(lambda z: parts(z)[0], dimensions + 2)
    if z is None:
        return None
    _, expected, deviation, steps, variance, left, precision, level = parts(z)
    chance = np.random.default_rng(1)
    of_level = chance.standard_normal(DRAWS)
    of_walk = chance.standard_t(prior.freedom_beyond, DRAWS)
    level = level + of_level / np.sqrt(precision)
    left = left - level[:, None] * ones
    known = deviation**2 * (toward * left / variance).sum(axis=1)
    rest = deviation**2 * walk[points, points] - deviation**4 * (toward**2 / variance).sum(axis=1)
    target = steps[:, points] + level + known + np.sqrt(np.maximum(0.0, rest)) * of_walk
    return Draws(target, level + steps[:, 0], deviation, expected)


def _importance(log_likelihood: Callable[[Array], Array], dimensions: int) -> Array | None:
    """Draws of standard normal numbers by how likely they are after the measurement; None where none is possible."""
    rng = np.random.default_rng(0)
    mean, root = np.zeros(dimensions), np.eye(dimensions)
    for stage in range(STAGES):
        t = rng.standard_normal((DRAWS, dimensions))
        t *= np.sqrt(FREEDOM / rng.chisquare(FREEDOM, DRAWS))[:, None]
        z = np.clip(mean + t @ root.T, -FARTHEST, FARTHEST)
        proposed = -(FREEDOM + dimensions) / 2 * np.log1p((t**2).sum(axis=1) / FREEDOM)
        logs = log_likelihood(z) - (z**2).sum(axis=1) / 2 - proposed
        if not np.isfinite(logs).any():
            return None
        weights = np.exp(logs - logs.max())
        if stage < STAGES - 1:
            enough = min(ENOUGH, np.count_nonzero(weights) / 2)
            while weights.sum() ** 2 < enough * (weights**2).sum():
                weights = np.sqrt(weights)
            weights /= weights.sum()
            mean = weights @ z
            root = np.linalg.cholesky((weights[:, None] * (z - mean)).T @ (z - mean) + 1e-6 * np.eye(dimensions))
    ends = np.cumsum(weights)
    return z[np.searchsorted(ends, (np.arange(DRAWS) + 0.5) / DRAWS * ends[-1])]
