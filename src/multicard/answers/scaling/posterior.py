"""Draw the time of a step on a number of devices, given measured times on others and a curve with a few unknowns.

The logarithm of the measured mean at point i, over n_i repeats, is

    m_i = a + f(x_i; θ) + w_i + e_i,    w ~ N(0, τ² K),    e_i ~ N(0, σ² / n_i)

- a, the `level`, is common to all points, and any level is as likely as any other.
- f, the `curve`, has the unknowns θ. It is the log time less the level.
- w is a random walk over the doublings of the devices: with each doubling times may deviate further from the curve. So
  the further an extrapolation goes, the less certain it is, however well a curve fits the points. τ, the `deviation`,
  is the standard deviation of the walk over one doubling, and K is its covariance for τ = 1 (`walk_covariance`).
- e is the scatter of repeats. σ² is the `noise`, the variance of the logarithm of one repeat.

θ, τ and σ are functions of standard normal numbers z (`_Measurement.unknowns`). `importance_sample` draws z given the
measurement. Given z, the level a and the walk w at the points are normal. They are drawn exactly (`_fit_level`,
`_walk_at_target`): this is Gaussian process regression with an unknown mean (Carl Rasmussen and Christopher Williams,
Gaussian Processes for Machine Learning, 2006, section 2.7). Only what the walk does beyond the points has a t
distribution, whose tails are heavier (`ScalingPrior.freedom_beyond`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, ndtr

from multicard.answers.scaling.importance_sampling import importance_sample

Array = np.ndarray


@dataclass(frozen=True)
class ScalingPrior:
    """Assumptions before any measurement, fitted to public tables (docs/predicting.md names them).

    `growth`, `hidden` and `deviation` are medians, as shares of the time of a step. The `…_spread` of each is the
    standard deviation of its logarithm.
    """

    # Time that the first doubling of the devices adds to a step.
    growth: float = 0.01
    growth_spread: float = 2.0
    # Time of communication between two devices, whether or not the backward pass hides it.
    hidden: float = 0.15
    hidden_spread: float = 1.0
    # Standard deviation of the random walk over one doubling if repeats did not scatter. Jobs whose repeats scatter
    # more deviate more, so the square of the scatter is added to the square of this (`_Measurement.unknowns`).
    deviation: float = 0.005
    deviation_spread: float = 1.0
    # Beyond the runs the walk has a t distribution with this many degrees of freedom. Its tails are far heavier than
    # those of a normal one, because a doubling may bring what no smaller number of devices showed, such as a slower
    # link between more devices.
    freedom_beyond: float = 2.0
    # Relative standard deviation of repeats, and how many degrees of freedom this assumption counts as. Those of
    # measured repeats are added.
    noise: float = 0.01
    noise_freedom: float = 2.0


@dataclass(frozen=True)
class Draws:
    """Equally likely values of the unknowns after the measurement: arrays with an entry per draw."""

    # Log seconds of a step at the target, the walk included.
    target: Array
    # Log seconds of a step at the first point, on the curve.
    level: Array
    # τ, and its median according to the prior and the scatter of repeats, before the curve is fitted to the points.
    deviation: Array
    expected_deviation: Array


def draw_posterior(
    repeats: Sequence[Array],
    curve: Callable[[Array], Array],
    coordinates: Sequence[Array],
    dimensions: int,
    prior: ScalingPrior,
    limits: Array | None = None,
) -> Draws | None:
    """Draw the log time at a target from measurements at some points; None if no draw respects the `limits`.

    Parameters
    ----------
    repeats
        Seconds of each repeat, an array per point.
    curve
        Function from z, draws × `dimensions`, to log times less the level, draws × (points, target, limits).
    coordinates
        An array for each coordinate along which the walk deviates, such as the doublings of devices: the coordinates of
        the points and, last, of the target. The first point is at 0.
    dimensions
        How many standard normal numbers the curve depends on.
    limits
        Upper bounds of log seconds, one for each column of the curve that follows the target; None without limits.

    Examples
    --------
    The curve is flat and one and two devices take 1 s, so four devices are expected to take 1 s, which is e⁰:

    >>> draws = draw_posterior(
    ...     repeats=[np.array([1.0, 1.0]), np.array([1.0, 1.0])],
    ...     curve=lambda z: np.zeros((len(z), 3)),
    ...     coordinates=[np.array([0.0, 1.0, 2.0])],
    ...     dimensions=0,
    ...     prior=ScalingPrior(),
    ... )
    >>> draws.target.shape, abs(float(np.median(draws.target))) < 0.001
    ((4096,), True)
    """
    measurement = _Measurement(repeats, curve, coordinates, prior, limits)
    # Two dimensions more, for σ and for τ.
    z = importance_sample(measurement.log_likelihood, dimensions + 2)
    return None if z is None else measurement.draw(z)


def walk_covariance(coordinates: Array) -> Array:
    """Return the covariances of a random walk that starts at 0 in both directions, with a variance of 1 per unit.

    Two points on the same side of 0 share the walk from 0 to the nearer one. Points on different sides share nothing.

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
class _Repeats:
    """What repeats show: log times and scatter. The scatter that the prior assumes counts as further repeats."""

    # m and n of the module's formula, an entry per point.
    means: Array
    counts: Array
    # Sum of squared deviations of logarithms from the mean of their point, and its degrees of freedom.
    squares: float
    freedom: float


@dataclass(frozen=True)
class _Rotation:
    """Coordinates in which the deviations of the points from the curve are independent; made by `_rotate`."""

    # Vᵀ R, by which log times at the points are rotated.
    matrix: Array
    # λ, variances of the rotated walk for τ = 1.
    eigenvalues: Array
    # A level of 1 at every point, rotated.
    ones: Array
    # Covariances of the walk at the target with the rotated walk at the points, and the variance of the walk at the
    # target, all for τ = 1.
    target: Array
    target_variance: float


@dataclass(frozen=True)
class _Unknowns:
    """What z stands for: an entry or a row per draw."""

    # σ²
    noise: Array
    expected_deviation: Array
    # τ
    deviation: Array
    # f, draws × (points, target, limits)
    log_times: Array


@dataclass(frozen=True)
class _Level:
    """The normal distribution of the level a given the unknowns: an entry per draw."""

    mean: Array
    # Inverse variance.
    precision: Array


@dataclass(frozen=True)
class _WalkAtTarget:
    """Mean and standard deviation of the walk w at the target, given the walk at the points: an entry per draw."""

    mean: Array
    deviation: Array


class _Measurement:
    """Measured times of steps at some points, and the likelihood of unknowns given these."""

    def __init__(
        self,
        repeats: Sequence[Array],
        curve: Callable[[Array], Array],
        coordinates: Sequence[Array],
        prior: ScalingPrior,
        limits: Array | None,
    ) -> None:
        """Take what `draw_posterior` takes."""
        self._curve = curve
        self._prior = prior
        self._limits = limits
        self._points = len(repeats)
        self._repeats = _summarize(repeats, prior)
        walk = np.sum([walk_covariance(coordinate) for coordinate in coordinates], axis=0)
        self._rotation = _rotate(self._repeats.counts, walk)

    def unknowns(self, z: Array) -> _Unknowns:
        """Return what standard normal numbers stand for: the first column for σ, the second for τ, the others for θ.

        σ² is the sum of squares divided by a χ² number with the same degrees of freedom. This is the distribution of a
        variance after it was measured (Bayes). τ is √(d² + σ²) · exp(s z₂), where d and s are the prior's `deviation`
        and `deviation_spread`.
        """
        prior = self._prior
        noise = self._repeats.squares / chdtri(self._repeats.freedom, ndtr(z[:, 0]))
        expected_deviation = np.sqrt(prior.deviation**2 + noise)
        deviation = expected_deviation * np.exp(prior.deviation_spread * z[:, 1])
        return _Unknowns(noise, expected_deviation, deviation, self._curve(z[:, 2:]))

    def log_likelihood(self, z: Array) -> Array:
        """Return the log likelihood of the means for each row of z, without a constant; −∞ if a limit is exceeded.

        The level is integrated out. With the rotated residuals r, their variances v, the mean a of the level and its
        precision p, and a level of 1 at each point, rotated, o, it is

            −½ (Σ (r − a o)² / v + Σ log v + log p)

        The term log p comes from the integral over the level.
        """
        unknowns = self.unknowns(z)
        residuals = self._residuals(unknowns)
        variances = self._residual_variances(unknowns)
        level = _fit_level(residuals, variances, self._rotation.ones)
        deviations = residuals - level.mean[:, None] * self._rotation.ones
        squared_deviations = (deviations**2 / variances).sum(axis=1)
        log_determinant = np.log(variances).sum(axis=1)
        log_likelihood = -0.5 * (squared_deviations + log_determinant + np.log(level.precision))
        if self._limits is None:
            return log_likelihood
        limited = unknowns.log_times[:, self._points + 1 :] + level.mean[:, None]
        is_exceeded = (limited > self._limits).any(axis=1)
        return np.where(is_exceeded, -np.inf, log_likelihood)

    def draw(self, z: Array) -> Draws:
        """Draw the level, then the walk at the target, one of each per row of z."""
        unknowns = self.unknowns(z)
        residuals = self._residuals(unknowns)
        variances = self._residual_variances(unknowns)
        fitted_level = _fit_level(residuals, variances, self._rotation.ones)
        random = np.random.default_rng(1)
        level_scores = random.standard_normal(len(z))
        walk_scores = random.standard_t(self._prior.freedom_beyond, len(z))
        level = fitted_level.mean + level_scores / np.sqrt(fitted_level.precision)
        walk_at_points = residuals - level[:, None] * self._rotation.ones
        walk = _walk_at_target(walk_at_points, variances, unknowns.deviation, self._rotation)
        target_on_curve = unknowns.log_times[:, self._points]
        first_on_curve = unknowns.log_times[:, 0]
        return Draws(
            target=target_on_curve + level + walk.mean + walk.deviation * walk_scores,
            level=level + first_on_curve,
            deviation=unknowns.deviation,
            expected_deviation=unknowns.expected_deviation,
        )

    def _residuals(self, unknowns: _Unknowns) -> Array:
        """Return the means less the curve, rotated: draws × points."""
        on_curve = unknowns.log_times[:, : self._points]
        return (self._repeats.means - on_curve) @ self._rotation.matrix.T

    def _residual_variances(self, unknowns: _Unknowns) -> Array:
        """Return the variances τ² λ + σ² of the rotated residuals: draws × points."""
        return unknowns.deviation[:, None] ** 2 * self._rotation.eigenvalues + unknowns.noise[:, None]


def _summarize(repeats: Sequence[Array], prior: ScalingPrior) -> _Repeats:
    """Return means and scatter of repeats in seconds, an array per point.

    Logarithms of 0 and 2 at one point have a mean of 1, and squared deviations of 1 + 1 with one degree of freedom. A
    prior noise of 0.5 with two degrees of freedom adds 2 · 0.25 to the squares and 2 to the degrees of freedom.

    >>> summary = _summarize([np.exp([0.0, 2.0])], ScalingPrior(noise=0.5, noise_freedom=2.0))
    >>> summary.means.tolist(), summary.squares, float(summary.freedom)
    ([1.0], 2.5, 3.0)
    """
    logs = [np.log(seconds) for seconds in repeats]
    counts = np.array([len(values) for values in logs])
    means = np.array([values.mean() for values in logs])
    squares = sum(float(((values - mean) ** 2).sum()) for values, mean in zip(logs, means, strict=True))
    return _Repeats(
        means=means,
        counts=counts,
        squares=squares + prior.noise_freedom * prior.noise**2,
        freedom=counts.sum() - len(repeats) + prior.noise_freedom,
    )


def _rotate(counts: Array, walk: Array) -> _Rotation:
    """Return coordinates in which the deviations of the points from the curve are independent.

    With R = diag(√n), the scaled means R m have the covariance τ² R K R + σ² I. The eigenvectors V of R K R depend
    neither on τ nor on σ, so entries of Vᵀ R m are independent for every draw, with the variances τ² λ + σ².

    `counts`: n of the points. `walk`: covariances of the walk at the points and, last, at the target.

    In this example there is one repeat at 0 and one at 1. They need no rotation, because the walk at 0 is always 0. The
    walk to the target at 3 passes 1, so its covariance with the walk at 1 is 1.

    >>> rotation = _rotate(np.array([1, 1]), walk_covariance(np.array([0.0, 1.0, 3.0])))
    >>> rotation.matrix.tolist(), rotation.eigenvalues.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0])
    >>> rotation.target.tolist(), float(rotation.target_variance)
    ([0.0, 1.0], 3.0)
    """
    points = len(counts)
    root = np.sqrt(counts)
    between_points = walk[:points, :points]
    eigenvalues, eigenvectors = np.linalg.eigh(root[:, None] * between_points * root)
    matrix = eigenvectors.T * root
    return _Rotation(
        matrix=matrix,
        eigenvalues=eigenvalues,
        ones=matrix.sum(axis=1),
        target=matrix @ walk[points, :points],
        target_variance=walk[points, points],
    )


def _fit_level(residuals: Array, variances: Array, ones: Array) -> _Level:
    """Return the level that fits best given the unknowns, by weighted least squares.

    With the rotated residuals r, their variances v, and a level of 1 at each point, rotated, o, the precision is
    p = Σ o² / v and the mean is (Σ o r / v) / p. Residuals of 0 and 1 with variances of 1 and 4 have a precision of
    1 + ¼ and a mean of ¼ / 1.25:

    >>> level = _fit_level(np.array([[0.0, 1.0]]), np.array([[1.0, 4.0]]), np.array([1.0, 1.0]))
    >>> level.mean.tolist(), level.precision.tolist()
    ([0.2], [1.25])
    """
    precision = (ones**2 / variances).sum(axis=1)
    mean = (ones * residuals / variances).sum(axis=1) / precision
    return _Level(mean, precision)


def _walk_at_target(walk_at_points: Array, variances: Array, deviation: Array, rotation: _Rotation) -> _WalkAtTarget:
    """Return the walk at the target given the rotated walk at the points: a linear prediction, and its uncertainty.

    r is the rotated walk at the points, v its variances, which include the scatter of repeats. For τ = 1, c are the
    covariances of r with the walk at the target, and k is the variance of the walk at the target. Then the mean is
    τ² Σ c r / v, and the variance is τ² k − τ⁴ Σ c² / v.

    With τ² = 3 and σ² = 1, a walk of 0.8 at 1 predicts 3 · 0.8 / 4 at 3, with a variance of 3 · 3 − 9 / 4 = 6.75:

    >>> rotation = _rotate(np.array([1, 1]), walk_covariance(np.array([0.0, 1.0, 3.0])))
    >>> walk = _walk_at_target(np.array([[0.0, 0.8]]), np.array([[1.0, 4.0]]), np.sqrt([3.0]), rotation)
    >>> walk.mean.round(9).tolist(), (walk.deviation**2).round(9).tolist()
    ([0.6], [6.75])
    """
    covariances = rotation.target
    mean = deviation**2 * (covariances * walk_at_points / variances).sum(axis=1)
    explained = deviation**4 * (covariances**2 / variances).sum(axis=1)
    variance = deviation**2 * rotation.target_variance - explained
    # Rounding may leave a variance just below zero.
    return _WalkAtTarget(mean, np.sqrt(np.maximum(0.0, variance)))
