"""Draw the time of a step on a number of devices from what measured times leave open of a curve with a few unknowns.

The logarithm of the measured mean at point i, over n_i repeats, is

    m_i = a + f(x_i; θ) + w_i + e_i,    w ~ N(0, τ² K),    e_i ~ N(0, σ² / n_i)

- a, the `level`, is common to all points, and any level is as likely as any other.
- f, the `curve`, has the unknowns θ. It gives log times but for the level.
- w is a random walk, which leaves the curve the further the more often the devices double. So an extrapolation is the
  less certain the further it goes, whatever curve fits the points. τ is its `deviation` over one doubling, K its
  covariance for τ = 1 (`walk_covariance`).
- e is the scatter of repeats. σ² is the `noise`, the variance of the logarithm of one repeat.

θ, τ and σ are functions of standard normal numbers z. Draws of z after the measurement come from adaptive importance
sampling: Olivier Cappé, Arnaud Guillin, Jean-Michel Marin and Christian Robert, Population Monte Carlo, JCGS 13(4),
2004. Given these, a and w are normal, and are drawn exactly, but for the walk beyond the runs, which has the heavier
tails of a t distribution (`Prior.freedom_beyond`). The normal part is Gaussian process regression with an unknown mean:
Carl Rasmussen and Christopher Williams, Gaussian Processes for Machine Learning, 2006, section 2.7.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtr

DRAWS = 4096
# Rounds of importance sampling. Each but the last adapts the distribution that proposes draws in the next.
STAGES = 4
# Degrees of freedom of the t distribution that proposes draws: its tails are heavier than those of what is sought.
PROPOSAL_FREEDOM = 5
# Draws of z are cut here, at so many standard deviations of the prior, where exponentials of them would overflow.
FARTHEST = 6.0
# Effective number of draws from which a proposal is adapted. A few draws with all the weight would narrow it too much.
ENOUGH = 200

Array = np.ndarray


@dataclass(frozen=True)
class Prior:
    """Assumptions before any measurement, fitted to public tables (docs/choosing.md names them).

    A median, as a share of the time of a step, is followed by the standard deviation of its logarithm (`…_spread`).
    """

    # Time that the first doubling of the devices adds to a step.
    growth: float = 0.01
    growth_spread: float = 2.0
    # Communication between two devices, hidden by the backward pass or not.
    hidden: float = 0.15
    hidden_spread: float = 1.0
    # Deviation of the random walk over one doubling, beside the scatter of repeats: jobs whose repeats scatter more
    # deviate more, so that both add up in squares.
    deviation: float = 0.005
    deviation_spread: float = 1.0
    # Beyond the runs the walk follows a t distribution with so many degrees of freedom, whose tails are far heavier
    # than a normal one's: one doubling may bring what no smaller number of devices showed, as a slower link between
    # more devices.
    freedom_beyond: float = 2.0
    # Relative scatter of repeats, and the degrees of freedom that this assumption counts for beside measured repeats.
    noise: float = 0.01
    noise_freedom: float = 2.0


@dataclass(frozen=True)
class Draws:
    """Equally likely values of the unknowns after the measurement: arrays with an entry per draw."""

    target: Array  # log seconds of a step at the target
    level: Array  # log seconds of a step at the first point, on the curve
    deviation: Array  # τ
    expected_deviation: Array  # the median of τ before the measurement, by the scatter of repeats


def draw_posterior(
    repeats: Sequence[Array],
    curve: Callable[[Array], Array],
    coordinates: Sequence[Array],
    dimensions: int,
    prior: Prior,
    limits: Array | None = None,
) -> Draws | None:
    """Draw the log time at a target from measurements at some points; None if no draw respects the `limits`.

    Parameters
    ----------
    repeats
        Seconds of each repeat, an array per point.
    curve
        Log times relative to one another, draws × (points, target, limits), given z, draws × `dimensions`.
    coordinates
        For each coordinate in which the walk deviates: those of the points and of the target, in doublings, with the
        first point at 0.
    dimensions
        How many standard normal numbers the curve depends on.
    limits
        Upper bounds of the log times in the columns of the curve that follow the target.
    """
    measured = _Measurement(repeats, curve, coordinates, prior, limits)
    z = _importance_sample(measured.log_likelihood, dimensions + 2)
    return None if z is None else measured.draw(z)


def walk_covariance(coordinates: Array) -> Array:
    """Return the covariances of a random walk with a variance of 1 per unit, which goes both ways from 0.

    Two places on the same side of 0 have in common the way to the nearer one, on different sides nothing.

    >>> walk_covariance(np.array([0.0, 1.0, 3.0, -2.0]))
    array([[0., 0., 0., 0.],
           [0., 1., 1., 0.],
           [0., 1., 3., 0.],
           [0., 0., 0., 2.]])
    """
    distance = abs(coordinates)
    between = abs(coordinates[:, None] - coordinates)
    return (distance[:, None] + distance - between) / 2


@dataclass(frozen=True)
class _Unknowns:
    """What z stands for: an entry or a row per draw."""

    noise: Array  # σ²
    expected_deviation: Array
    deviation: Array  # τ
    curve: Array  # log times, draws × (points, target, limits)


@dataclass(frozen=True)
class _Level:
    """The means less the curve, and the level that follows from them, given the unknowns; a row per draw."""

    residuals: Array  # rotated, draws × points
    residual_variances: Array  # draws × points
    mean: Array
    precision: Array  # inverse variance


class _Measurement:
    """Measured means at the points, in coordinates in which their deviations from the curve are independent.

    With R = diag(√n), the scaled means R m have the covariance τ² R K R + σ² I. The eigenvectors V of R K R depend
    neither on τ nor on σ, so entries of Vᵀ R m are independent for every draw, with the variances τ² λ + σ².
    """

    def __init__(
        self,
        repeats: Sequence[Array],
        curve: Callable[[Array], Array],
        coordinates: Sequence[Array],
        prior: Prior,
        limits: Array | None,
    ) -> None:
        """Take what `draw_posterior` takes."""
        self._curve, self._prior, self._limits = curve, prior, limits
        self._points = len(repeats)
        logs = [np.log(seconds) for seconds in repeats]
        counts = np.array([len(values) for values in logs])
        self._means = np.array([values.mean() for values in logs])
        squares = sum(float(((values - mean) ** 2).sum()) for values, mean in zip(logs, self._means, strict=True))
        # The prior's scatter counts as further repeats.
        self._noise_squares = squares + prior.noise_freedom * prior.noise**2
        self._noise_freedom = counts.sum() - self._points + prior.noise_freedom
        walk = np.sum([walk_covariance(places) for places in coordinates], axis=0)
        between_points = walk[: self._points, : self._points]
        root = np.sqrt(counts)
        self._eigenvalues, eigenvectors = np.linalg.eigh(root[:, None] * between_points * root)
        self._rotation = eigenvectors.T * root
        self._rotated_ones = self._rotation.sum(axis=1)
        self._rotated_target = self._rotation @ walk[self._points, : self._points]
        self._target_variance = walk[self._points, self._points]

    def unknowns(self, z: Array) -> _Unknowns:
        """Return what standard normal numbers stand for: the first is of σ, the second of τ, the others are θ.

        By Bayes, σ² is the sum of squares over a χ² number. A `deviation` is log-normal around the prior's.
        """
        prior = self._prior
        noise = self._noise_squares / chdtri(self._noise_freedom, ndtr(z[:, 0]))
        expected_deviation = np.sqrt(prior.deviation**2 + noise)
        deviation = expected_deviation * np.exp(prior.deviation_spread * z[:, 1])
        return _Unknowns(noise, expected_deviation, deviation, self._curve(z[:, 2:]))

    def level(self, unknowns: _Unknowns) -> _Level:
        """Return the level that fits best given the unknowns, by weighted least squares."""
        ones = self._rotated_ones
        variances = unknowns.deviation[:, None] ** 2 * self._eigenvalues + unknowns.noise[:, None]
        residuals = (self._means - unknowns.curve[:, : self._points]) @ self._rotation.T
        precision = (ones**2 / variances).sum(axis=1)
        mean = (ones * residuals / variances).sum(axis=1) / precision
        return _Level(residuals, variances, mean, precision)

    def log_likelihood(self, z: Array) -> Array:
        """Return how likely the means are, whatever the level; minus infinity where a limit is exceeded."""
        unknowns = self.unknowns(z)
        level = self.level(unknowns)
        deviations = level.residuals - level.mean[:, None] * self._rotated_ones
        squared_residuals = (deviations**2 / level.residual_variances).sum(axis=1)
        log_determinant = np.log(level.residual_variances).sum(axis=1)
        # log(precision) is what integrating over the level leaves.
        log_likelihood = -0.5 * (squared_residuals + log_determinant + np.log(level.precision))
        if self._limits is None:
            return log_likelihood
        limited = unknowns.curve[:, self._points + 1 :] + level.mean[:, None]
        return np.where((limited > self._limits).any(axis=1), -np.inf, log_likelihood)

    def draw(self, z: Array) -> Draws:
        """Draw the level, then the walk at the target, one of each per row of z."""
        unknowns = self.unknowns(z)
        fit = self.level(unknowns)
        random = np.random.default_rng(1)
        level_scores = random.standard_normal(len(z))
        walk_scores = random.standard_t(self._prior.freedom_beyond, len(z))
        level = fit.mean + level_scores / np.sqrt(fit.precision)
        # The walk at the target given the walk at the points: a linear prediction, and the variance that this leaves.
        walk_at_points = fit.residuals - level[:, None] * self._rotated_ones
        toward = self._rotated_target
        walk_mean = unknowns.deviation**2 * (toward * walk_at_points / fit.residual_variances).sum(axis=1)
        explained = unknowns.deviation**4 * (toward**2 / fit.residual_variances).sum(axis=1)
        walk_variance = unknowns.deviation**2 * self._target_variance - explained
        # Rounding may leave a variance just below zero.
        walk_beyond = np.sqrt(np.maximum(0.0, walk_variance)) * walk_scores
        target = unknowns.curve[:, self._points] + level + walk_mean + walk_beyond
        return Draws(target, level + unknowns.curve[:, 0], unknowns.deviation, unknowns.expected_deviation)


@dataclass(frozen=True)
class _Proposal:
    """A multivariate t distribution, from which z is proposed."""

    center: Array
    root: Array  # Cholesky factor of its scale matrix

    def draw(self, random: np.random.Generator) -> tuple[Array, Array]:
        """Return draws, draws × dimensions, and the logarithms of their densities but for a constant."""
        dimensions = len(self.center)
        scores = random.standard_normal((DRAWS, dimensions))
        scores *= np.sqrt(PROPOSAL_FREEDOM / random.chisquare(PROPOSAL_FREEDOM, DRAWS))[:, None]
        squares = (scores**2).sum(axis=1)
        log_density = -(PROPOSAL_FREEDOM + dimensions) / 2 * np.log1p(squares / PROPOSAL_FREEDOM)
        return np.clip(self.center + scores @ self.root.T, -FARTHEST, FARTHEST), log_density


def _importance_sample(log_likelihood: Callable[[Array], Array], dimensions: int) -> Array | None:
    """Return equally likely draws of standard normal numbers after a measurement; None if it excludes all."""
    random = np.random.default_rng(0)
    proposal = _Proposal(np.zeros(dimensions), np.eye(dimensions))
    for _ in range(STAGES - 1):
        z, weights = _weighted_draws(proposal, log_likelihood, random)
        if not weights.any():
            return None
        proposal = _adapted(z, weights)
    z, weights = _weighted_draws(proposal, log_likelihood, random)
    if not weights.any():
        return None
    # Systematic resampling: draws are repeated in proportion to their weights.
    cumulative = np.cumsum(weights)
    return z[np.searchsorted(cumulative, (np.arange(DRAWS) + 0.5) / DRAWS * cumulative[-1])]


def _weighted_draws(
    proposal: _Proposal, log_likelihood: Callable[[Array], Array], random: np.random.Generator
) -> tuple[Array, Array]:
    """Return draws of a proposal, and their weights: of the likeliest 1, all 0 if every draw is impossible."""
    z, log_proposed = proposal.draw(random)
    log_prior = -(z**2).sum(axis=1) / 2
    log_weights = log_likelihood(z) + log_prior - log_proposed
    if not np.isfinite(log_weights).any():
        return z, np.zeros(len(z))
    return z, np.exp(log_weights - log_weights.max())


def _adapted(z: Array, weights: Array) -> _Proposal:
    """Return a proposal with the mean and the covariance of weighted draws.

    Weights are evened out until enough draws take part: after an early proposal, which is far off, few draws would.
    """
    enough = min(ENOUGH, np.count_nonzero(weights) / 2)
    # The effective number of draws: (Σ w)² / Σ w².
    while weights.sum() ** 2 < enough * (weights**2).sum():
        weights = np.sqrt(weights)
    weights = weights / weights.sum()
    center = weights @ z
    deviations = z - center
    # A little is added to the diagonal, since draws that are all cut at `FARTHEST` have no covariance.
    covariance = (weights[:, None] * deviations).T @ deviations + 1e-6 * np.eye(z.shape[1])
    return _Proposal(center, np.linalg.cholesky(covariance))
