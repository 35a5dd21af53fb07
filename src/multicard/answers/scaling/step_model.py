"""A model of the time of a step on n devices. Its unknowns are drawn given runs on a few numbers of devices.

    T(n) = max(L(n), max(B(n), 0.001) · W(n)),    B(n) = C(n) + G(n) + max(0, H(n) − ⅔ C(n))

- C, compute, is the sum of a fixed share and a share that grows with the samples of a device. The fixed share is an
  unknown only if these samples vary. If not, C is 1.
- G, growth, is c (n^p − 1) / (2^p − 1) with −1 < p < 1.5, where n is relative to the smallest number of devices. With
  p = −1 it is proportional to the 1 − 1/n of a ring's bandwidth. With p = 0 it is the log2 n of a tree, or of waiting
  for the slowest rank. With p = 1 it is the n − 1 of a ring's latency. G stands for exposed communication, for serial
  work under strong scaling, and for whatever else more devices cost.
- H is communication as of a ring, h · 2 (1 − 1/n), of which the backward pass hides up to ⅔ of C. Runs on two numbers
  of devices may hide all of it, while more devices do not. H is 0 with runs on three or more numbers of devices, which
  would show it, and if the samples of a device vary.
- L, loading, is known only if ranks waited for data in some runs. Either each rank loads for itself, or the ranks of a
  node share what the node can load, or something in between.
- W is a random walk over the doublings of n (`posterior`). It stands for all that such a curve lacks. L has one, too.

`_BusyCurve` has B, relative to a step on the smallest number of devices, and `_LoadingCurve` has L; their examples can
be checked by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from multicard.answers.scaling.posterior import Array, Draws, ScalingPrior, draw_posterior
from multicard.answers.scaling.work import is_same_work

# Range of the exponent p of the growth.
LOWEST_EXPONENT, HIGHEST_EXPONENT = -1.0, 1.5
# A drawn time is at least this share of a step on the smallest number of devices, so that it has a logarithm.
SHORTEST = 1e-3
# With runs on at least this many numbers of devices, no hidden communication is assumed: some of them would show it.
SHOWING_HIDDEN = 3
# Communication can be hidden by up to this share of a step's compute: that of the backward pass.
HIDEABLE = 2 / 3
# The loader sets the pace if at least this share of a step is spent waiting for data.
WAITING_SHARE = 0.05
# Loading that no rank waited for took at most as long as the step plus this share of it.
SAME_TIME = 0.05


@dataclass(frozen=True)
class ScalingPoint:
    """Runs of one configuration on one number of devices."""

    devices: int
    devices_per_node: int
    # Samples of a step on one device.
    samples: float
    # For each repeat the seconds of a step, and how many of these were spent waiting for data. The wait is 0 if the
    # process that computes also loads.
    step_s: tuple[float, ...]
    waited_s: tuple[float, ...]

    @property
    def busy_s(self) -> Array:
        """For each repeat the seconds of a step without the wait for data."""
        return np.array(self.step_s) - np.array(self.waited_s)

    @property
    def is_waiting(self) -> bool:
        """True if the loader sets the pace."""
        return float(np.mean(self.waited_s)) >= WAITING_SHARE * float(np.mean(self.step_s))


@dataclass(frozen=True)
class Target:
    """The step to predict: the number of devices, how many of them are on a node, and the samples of each device."""

    devices: int
    devices_per_node: int
    samples: float


# A step whose time is measured, or predicted.
Step = ScalingPoint | Target


def draw_busy(points: Sequence[ScalingPoint], target: Target, prior: ScalingPrior) -> Draws:
    """Draw the time of a step without the wait for data."""
    curve = _BusyCurve(points, target, prior)
    repeats = [point.busy_s for point in points]
    draws = draw_posterior(repeats, curve.log_times, curve.coordinates, curve.dimensions, prior)
    # Only limits exclude draws, and there are none.
    assert draws is not None
    return draws


def draw_loading(points: Sequence[ScalingPoint], target: Target, prior: ScalingPrior) -> Draws | None:
    """Draw the time that loading the samples of a step takes.

    Runs in which ranks waited for data measure this time. The other runs limit it: there it took no longer than the
    step. None if no rank ever waited, or if no draw respects these limits.
    """
    waiting = [point for point in points if point.is_waiting]
    limiting = [point for point in points if not point.is_waiting]
    if not waiting:
        return None
    curve = _LoadingCurve([*waiting, target, *limiting])
    repeats = [np.array(point.step_s) for point in waiting]
    doublings = _doublings([*waiting, target])
    limits = [np.mean(point.step_s) * (1 + SAME_TIME) for point in limiting]
    log_limits = np.log(limits) if limits else None
    return draw_posterior(repeats, curve.log_times, [doublings], curve.dimensions, prior, log_limits)


def _device_counts(steps: Sequence[Step]) -> Array:
    return np.array([step.devices for step in steps], dtype=float)


def _doublings(steps: Sequence[Step]) -> Array:
    """Return for each step how many times the devices of the first step have to be doubled to give its devices.

    >>> _doublings([Target(2, 2, 64), Target(8, 8, 64)]).tolist()
    [0.0, 2.0]
    """
    devices = _device_counts(steps)
    return np.log2(devices / devices[0])


class _LoadingCurve:
    """The time of loading the samples of a step. It is proportional to samples · (devices of a node)^s.

    With s = 0 each rank loads for itself, however many there are. With s = 1 the ranks of a node share what the node
    can load, so that each has to wait for the samples of all. The only unknown z gives s = sin²(π/2 · Φ(z)). The sin²
    makes values of s near 0 and 1 likelier than those in between.

    With z = 0, Φ is ½ and s = sin²(π/4) = ½. Then 64 samples on each of four devices of a node take 64 · √4 = 128:

    >>> curve = _LoadingCurve([Target(1, 1, 64), Target(4, 4, 64)])
    >>> np.exp(curve.log_times(np.array([[0.0]]))).round(6).tolist()
    [[64.0, 128.0]]
    """

    dimensions = 1

    def __init__(self, steps: Sequence[Step]) -> None:
        samples = [step.samples for step in steps]
        sharing = [step.devices_per_node for step in steps]
        self._log_samples = np.log(np.array(samples, dtype=float))
        self._log_sharing = np.log(np.array(sharing, dtype=float))

    def log_times(self, z: Array) -> Array:
        """Return log times less their common level, draws × steps."""
        shared = np.sin(np.pi / 2 * ndtr(z)) ** 2
        return self._log_samples + shared * self._log_sharing


class _BusyCurve:
    """Compute, growth and exposed communication, relative to a step of the first point.

    The columns of its unknowns z stand for the amount of the growth, for its exponent, and for a third unknown if there
    is one: the fixed share of compute if the samples of a device vary, else hidden communication if it is assumed.

    With z = 0 they have the prior's medians: c = 0.01, p = −1 + 2.5 · ½ = ¼, and h = 0.15. Then G is 0, 0.01 and
    0.01 · (4^¼ − 1) / (2^¼ − 1) = 0.01 · 0.4142 / 0.1892 on 1, 2 and 4 devices. H is at most 0.15 · 2 · ¾, and ⅔ of the
    compute hides all of it.

    >>> points = [ScalingPoint(devices, devices, 64.0, (0.1,), (0.0,)) for devices in (1, 2)]
    >>> curve = _BusyCurve(points, Target(4, 4, 64.0), ScalingPrior())
    >>> np.exp(curve.log_times(np.zeros((1, curve.dimensions)))).round(4).tolist()
    [[1.0, 1.01, 1.0219]]
    """

    def __init__(self, points: Sequence[ScalingPoint], target: Target, prior: ScalingPrior) -> None:
        steps: list[Step] = [*points, target]
        self._prior = prior
        self._devices = _device_counts(steps)
        self._doublings = _doublings(steps)
        self._samples = np.array([step.samples for step in steps]) / points[0].samples
        self._samples_vary = not is_same_work(self._samples, 1.0)
        # The prior's `hidden` is a share of a step whose compute does not shrink as devices are added.
        self._hides = len(points) < SHOWING_HIDDEN and not self._samples_vary
        self._usual_growth = prior.growth
        if self._samples_vary:
            # The prior's `growth` is a share of a step. If steps shrink, it is taken as a share of the geometric mean
            # of the first step and the shortest one.
            self._usual_growth = prior.growth * np.sqrt(self._samples.min())

    @property
    def dimensions(self) -> int:
        """Number of columns of z."""
        return 2 + self._samples_vary + self._hides

    @property
    def coordinates(self) -> list[Array]:
        """Coordinates of the walk: doublings of the devices, and of the samples of a device if these vary."""
        if self._samples_vary:
            return [self._doublings, np.log2(self._samples)]
        return [self._doublings]

    def log_times(self, z: Array) -> Array:
        """Return log times, draws × (points, target)."""
        # The third column stands for the fixed share or for hidden communication, which are never both unknown. It is
        # empty if there is neither.
        growth_scores = z[:, 0:1]
        exponent_scores = z[:, 1:2]
        last_scores = z[:, 2:3]
        compute = self._compute(last_scores)
        times = compute + self._growth(growth_scores, exponent_scores)
        if self._hides:
            exposed = self._communication(last_scores) - HIDEABLE * compute
            times = times + np.maximum(0.0, exposed)
        return np.log(np.maximum(times, SHORTEST))

    def _compute(self, scores: Array) -> Array:
        """Return C: the time of compute, a fixed share and a share that grows with the samples of a device."""
        if not self._samples_vary:
            return np.ones_like(self._devices)
        share = _log_normal(self._usual_growth, self._prior.growth_spread, scores)
        fixed = np.minimum(1.0, share)
        return fixed + (1 - fixed) * self._samples

    def _growth(self, scores: Array, exponent_scores: Array) -> Array:
        """Return G: the time that is added if there are more devices than on the first point."""
        first_doubling = _log_normal(self._usual_growth, self._prior.growth_spread, scores)
        # Any exponent of the range is as likely as any other.
        exponent = LOWEST_EXPONENT + (HIGHEST_EXPONENT - LOWEST_EXPONENT) * ndtr(exponent_scores)
        return first_doubling * growth(self._devices / self._devices[0], exponent)

    def _communication(self, scores: Array) -> Array:
        """Return H: the time of communication by a ring, hidden or not. On two devices it is the unknown h."""
        between_two_devices = _log_normal(self._prior.hidden, self._prior.hidden_spread, scores)
        return between_two_devices * 2 * (1 - 1 / self._devices)


def _log_normal(median: float, spread: float, scores: Array) -> Array:
    """Return log-normal numbers for standard normal scores; `spread` is the standard deviation of their logarithm."""
    return median * np.exp(spread * scores)


def growth(times: Array, exponent: Array) -> Array:
    """Return (n^p − 1) / (2^p − 1), where n is how many `times` as many devices there are as on the first point.

    It is 0 on as many devices, and 1 on twice as many.

    >>> [growth(np.array([1, 2, 4]), np.array(exponent)).round(3).tolist() for exponent in (-1.0, 0.0, 1.0)]
    [[0.0, 1.0, 1.5], [0.0, 1.0, 2.0], [0.0, 1.0, 3.0]]
    """
    # For p = 0 the formula is 0 / 0. Its limit is log2 n, to which a tiny exponent comes close enough.
    exponent = np.where(abs(exponent) < 1e-6, 1e-6, exponent)
    return np.expm1(exponent * np.log(times)) / np.expm1(exponent * np.log(2))
