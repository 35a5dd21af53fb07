"""A model of the time of a step on n devices, whose unknowns are drawn given runs on a few numbers of devices.

    T(n) = max(loading(n), compute(n) + growth(n))

times a random walk over the doublings of n (`posterior`), which is what no such curve has.

- Compute grows with the samples of a device, but for a fixed share, which runs of several batch sizes show.
- Growth is c (n^p − 1) / (2^p − 1) with −1 < p < 1.5, and n relative to the smallest number of devices. With p = −1 it
  is the 1 − 1/n of a ring's bandwidth, with p = 0 the log2 n of a tree or of waiting for the slowest rank, with p = 1
  the n − 1 of a ring's latency. Exposed communication shows in it, serial work under strong scaling, and whatever else
  devices cost.
- Under weak scaling, communication that backward passes hide on two numbers of devices may show on more: it is that of
  a ring, H · 2 (1 − 1/n), less what can be hidden.
- Loading counts where ranks waited for it. Each rank loads for itself, or the ranks of a node share what that can load,
  or anything between.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from multicard.analysis.scaling.posterior import Array, Draws, Prior, draw_posterior
from multicard.analysis.scaling.work import is_same_work

# Range of the exponent p of the growth.
LOWEST_EXPONENT, HIGHEST_EXPONENT = -1.0, 1.5
# No draw takes less than this share of a step on the smallest number of devices, so that it has a logarithm.
SHORTEST = 1e-3
# Runs on so many numbers of devices show communication that some of them hide.
SHOWING_HIDDEN = 3
# Share of a step's compute under which communication can be hidden: that of the backward pass.
HIDEABLE = 2 / 3
# The loader sets the pace from this share of a step on that waits for data.
WAITING = 0.05
# Relative difference up to which two times are the same.
SAME_TIME = 0.05


@dataclass(frozen=True)
class Point:
    """Runs of one configuration on one number of devices."""

    devices: int
    devices_per_node: int
    # Samples of a step on one device.
    samples: float
    # Seconds of a step, and the part of these that waited for data, of each repeat. The part is 0 if the process that
    # computes also loads.
    step_s: tuple[float, ...]
    waited_s: tuple[float, ...]

    @property
    def busy_s(self) -> Array:
        """Seconds of a step without the wait for data, of each repeat."""
        return np.array(self.step_s) - np.array(self.waited_s)

    @property
    def is_waiting(self) -> bool:
        """True if the loader sets the pace."""
        return float(np.mean(self.waited_s)) >= WAITING * float(np.mean(self.step_s))


@dataclass(frozen=True)
class Target:
    """What is to be predicted: a step on some number of devices."""

    devices: int
    devices_per_node: int
    samples: float  # on one device


def draw_busy(points: Sequence[Point], target: Target, prior: Prior) -> Draws:
    """Draw the time of a step without the wait for data."""
    curve = _BusyCurve(points, target, prior)
    repeats = [point.busy_s for point in points]
    draws = draw_posterior(repeats, curve.log_times, curve.coordinates, curve.dimensions, prior)
    # Only limits exclude draws, and there are none.
    assert draws is not None
    return draws


def draw_loading(points: Sequence[Point], target: Target, prior: Prior) -> Draws | None:
    """Draw the time that loading the samples of a step takes; None where no rank ever waited for data.

    The runs where ranks waited measure it. The other ones limit it: there it took no longer than the step.
    """
    waiting = [point for point in points if point.is_waiting]
    limiting = [point for point in points if not point.is_waiting]
    if not waiting:
        return None
    steps: list[Point | Target] = [*waiting, target, *limiting]
    sharing = np.array([step.devices_per_node for step in steps], dtype=float)
    samples = np.array([step.samples for step in steps], dtype=float)

    def log_times(z: Array) -> Array:
        # How far the ranks of a node share its loading: sin² makes none or all of it likelier than anything between.
        shared = np.sin(np.pi / 2 * ndtr(z[:, :1])) ** 2
        return np.log(samples) + shared * np.log(sharing)

    devices = np.array([*(point.devices for point in waiting), target.devices])
    doublings = np.log2(devices / devices[0])
    limits = None
    if limiting:
        limits = np.log([np.mean(point.step_s) * (1 + SAME_TIME) for point in limiting])
    repeats = [np.array(point.step_s) for point in waiting]
    return draw_posterior(repeats, log_times, [doublings], 1, prior, limits)


class _BusyCurve:
    """Compute, growth and exposed communication, relative to a step of the first point.

    Columns of z, the standard normal numbers that it depends on: the amount of the growth, its exponent, the fixed
    share of compute if the samples of a device vary, and hidden communication if that is possible.
    """

    def __init__(self, points: Sequence[Point], target: Target, prior: Prior) -> None:
        steps: list[Point | Target] = [*points, target]
        self._prior = prior
        self._devices: Array = np.array([step.devices for step in steps], dtype=float)
        self._samples: Array = np.array([step.samples for step in steps]) / points[0].samples
        self._samples_vary = not is_same_work(self._samples, 1.0)
        # Hidden communication is a share of a step that does not shrink with the devices.
        self._hides = len(points) < SHOWING_HIDDEN and not self._samples_vary
        # The prior's growth is a share of a step. Where steps shrink, it is one between the first and the shortest.
        self._usual_growth = prior.growth * (np.sqrt(self._samples.min()) if self._samples_vary else 1.0)

    @property
    def dimensions(self) -> int:
        """Number of columns of z."""
        return 2 + self._samples_vary + self._hides

    @property
    def coordinates(self) -> list[Array]:
        """Doublings of the devices, and of the samples of a device if these vary: the walk deviates in both."""
        doublings = [np.log2(self._devices / self._devices[0])]
        return [*doublings, np.log2(self._samples)] if self._samples_vary else doublings

    def log_times(self, z: Array) -> Array:
        """Return log times, draws × (points, target)."""
        compute = self._compute(z)
        times = compute + self._growth(z)
        if self._hides:
            exposed = self._communication(z) - HIDEABLE * compute
            times = times + np.maximum(0.0, exposed)
        return np.log(np.maximum(times, SHORTEST))

    def _compute(self, z: Array) -> Array:
        """Return times that grow with the samples of a device, but for a fixed share."""
        if not self._samples_vary:
            return np.ones_like(self._devices)
        share = self._usual_growth * np.exp(self._prior.growth_spread * z[:, 2:3])
        fixed = np.minimum(1.0, share)
        return fixed + (1 - fixed) * self._samples

    def _growth(self, z: Array) -> Array:
        """Return the time that more devices than on the first point add."""
        first_doubling = self._usual_growth * np.exp(self._prior.growth_spread * z[:, :1])
        exponent = LOWEST_EXPONENT + (HIGHEST_EXPONENT - LOWEST_EXPONENT) * ndtr(z[:, 1:2])
        return first_doubling * growth(self._devices / self._devices[0], exponent)

    def _communication(self, z: Array) -> Array:
        """Return the time of a ring, by that of two devices; backward passes may hide it."""
        of_two_devices = self._prior.hidden * np.exp(self._prior.hidden_spread * z[:, -1:])
        return of_two_devices * 2 * (1 - 1 / self._devices)


def growth(times: Array, exponent: Array) -> Array:
    """Return (n^p − 1) / (2^p − 1), where n is how many `times` as many devices there are as on the first point.

    It is 0 on as many devices, and 1 on twice as many.

    >>> [growth(np.array([1, 2, 4]), np.array(exponent)).round(3).tolist() for exponent in (-1.0, 0.0, 1.0)]
    [[0.0, 1.0, 1.5], [0.0, 1.0, 2.0], [0.0, 1.0, 3.0]]
    """
    # The limit p → 0 is log2 n, which a small exponent has but for rounding.
    exponent = np.where(abs(exponent) < 1e-6, 1e-6, exponent)
    return np.expm1(exponent * np.log(times)) / np.expm1(exponent * np.log(2))
