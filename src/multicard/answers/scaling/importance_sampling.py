"""Draw standard normal numbers given a measurement, by adaptive importance sampling.

Olivier Cappé, Arnaud Guillin, Jean-Michel Marin and Christian Robert, Population Monte Carlo, JCGS 13(4), 2004. Draws z
are made from a proposal q. Each is weighted by the density of the posterior over that of the proposal,

    w(z) = L(z) · φ(z) / q(z)

- L is the likelihood of the measurement.
- φ is the standard normal density, the prior of z.
- q is a multivariate t distribution. In the first stage it has the center and the covariance of φ, in each further
  stage the mean and the covariance of the weighted draws of the stage before.

The draws of the last stage are resampled in proportion to their weights, so that all of them count the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

DRAWS = 4096
# Each stage but the last adapts the distribution that proposes the draws of the next one.
STAGES = 4
# Degrees of freedom of the proposal: its tails have to be heavier than those of the posterior.
PROPOSAL_FREEDOM = 5
# Draws of z are limited to this many standard deviations of the prior, so that exponentials of them do not overflow.
FARTHEST = 6.0
# A proposal is adapted to at least this effective number of draws. A few draws with all the weight would narrow it too
# much.
ENOUGH = 200


@dataclass(frozen=True)
class _WeightedDraws:
    """Draws of a proposal, draws × dimensions, and the weight of each: 1 for the likeliest, 0 for impossible ones."""

    z: Array
    weights: Array

    @property
    def are_impossible(self) -> bool:
        """True if the measurement excludes every draw."""
        return not self.weights.any()


@dataclass(frozen=True)
class _Proposal:
    """A multivariate t distribution, from which z is proposed."""

    center: Array
    # Cholesky factor of the scale matrix.
    root: Array

    def draw(self, log_likelihood: Callable[[Array], Array], random: np.random.Generator) -> _WeightedDraws:
        """Return draws with the weights w(z) of the module's formula, relative to the largest weight."""
        dimensions = len(self.center)
        normal = random.standard_normal((DRAWS, dimensions))
        chi_squares = random.chisquare(PROPOSAL_FREEDOM, DRAWS)
        scores = normal * np.sqrt(PROPOSAL_FREEDOM / chi_squares)[:, None]
        z = np.clip(self.center + scores @ self.root.T, -FARTHEST, FARTHEST)
        log_prior = -(z**2).sum(axis=1) / 2
        log_weights = log_likelihood(z) + log_prior - _log_t_density(scores)
        if not np.isfinite(log_weights).any():
            return _WeightedDraws(z, np.zeros(len(z)))
        return _WeightedDraws(z, np.exp(log_weights - log_weights.max()))


def _log_t_density(scores: Array) -> Array:
    """Return the log density of standard t scores, draws × dimensions, less a constant that weights do not depend on.

    With k degrees of freedom in d dimensions it is −(k + d) / 2 · log(1 + Σ s² / k). With k = 5 and d = 1, a score of
    √5 has −3 · log 2.

    >>> _log_t_density(np.array([[0.0], [5**0.5]])).round(4).tolist()
    [-0.0, -2.0794]
    """
    dimensions = scores.shape[1]
    squares = (scores**2).sum(axis=1)
    return -(PROPOSAL_FREEDOM + dimensions) / 2 * np.log1p(squares / PROPOSAL_FREEDOM)


def importance_sample(log_likelihood: Callable[[Array], Array], dimensions: int) -> Array | None:
    """Return equally likely draws of standard normal numbers given a measurement; None if it excludes all draws.

    `log_likelihood` takes draws × `dimensions` and returns a number per draw, minus infinity for an impossible one.
    Equal arguments give equal draws, since the generator has a fixed seed.

    After a measurement of 1 with a standard deviation of 1, the mean of z is halfway between the prior's 0 and that 1:

    >>> z = importance_sample(lambda z: -((z[:, 0] - 1) ** 2) / 2, 1)
    >>> z.shape, round(float(z.mean()), 1)
    ((4096, 1), 0.5)
    """
    random = np.random.default_rng(0)
    proposal = _Proposal(np.zeros(dimensions), np.eye(dimensions))
    for _ in range(STAGES - 1):
        draws = proposal.draw(log_likelihood, random)
        if draws.are_impossible:
            return None
        proposal = _adapted(draws)
    draws = proposal.draw(log_likelihood, random)
    if draws.are_impossible:
        return None
    return draws.z[_resampled(draws.weights, DRAWS)]


def _resampled(weights: Array, count: int) -> Array:
    """Return `count` indices of draws, each about as often as its share of the weights: systematic resampling.

    With weights of 1, 2 and 1, half of the indices are that of the middle draw:

    >>> _resampled(np.array([1.0, 2.0, 1.0]), 4).tolist()
    [0, 1, 1, 2]
    """
    cumulative = np.cumsum(weights)
    positions = (np.arange(count) + 0.5) / count * cumulative[-1]
    return np.searchsorted(cumulative, positions)


def _adapted(draws: _WeightedDraws) -> _Proposal:
    """Return a proposal with the mean and the covariance of weighted draws."""
    z = draws.z
    weights = _evened_out(draws.weights)
    center = weights @ z
    deviations = z - center
    covariance = (weights[:, None] * deviations).T @ deviations
    # If all draws are limited to `FARTHEST`, their covariance is 0, so a little is added to the diagonal.
    covariance = covariance + 1e-6 * np.eye(z.shape[1])
    return _Proposal(center, np.linalg.cholesky(covariance))


def _evened_out(weights: Array) -> Array:
    """Return weights that sum to 1, evened out by square roots until enough draws take part.

    An early proposal may be far off, so that few of its draws have nearly all the weight. The effective number of draws
    is (Σ w)² / Σ w². Enough are `ENOUGH`, or half of the draws that are possible, whichever is less.

    In this example 2 of the 4 draws are enough. The effective number is 1.1875² / 1.0117, about 1.4, at first, and
    1.75² / 1.1875, about 2.6, after one square root:

    >>> (7 * _evened_out(np.array([1, 1 / 16, 1 / 16, 1 / 16]))).round(9).tolist()
    [4.0, 1.0, 1.0, 1.0]
    """
    enough = min(ENOUGH, np.count_nonzero(weights) / 2)
    while weights.sum() ** 2 < enough * (weights**2).sum():
        weights = np.sqrt(weights)
    return weights / weights.sum()
