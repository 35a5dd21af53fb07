"""Runs that a prediction is made from, and what they show before any model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from multicard.analysis.scaling.posterior import Array, Prior
from multicard.analysis.statistics import LEVEL

WAITS = 0.05  # share of a step that waits for data from which on the loader sets its pace
SAME = 0.05  # relative difference of samples or times up to which they are the same


@dataclass(frozen=True)
class Point:
    """Runs of one configuration on one number of devices.

    Attributes
    ----------
    count, local
        Devices of the job, and of one of its nodes.
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


def superlinear(points: Sequence[Point], prior: Prior) -> dict[int, float]:
    """Counts on which a device is faster than on fewer, by more than 5% and than repeats explain (95%).

    Gives for each how many times as fast. Without repeats their scatter is that of the prior. That devices are faster
    together than alone has no reason that a model has: other data, clocks or software, or a cache that they fill.
    """
    ordered = sorted(points, key=lambda each: each.count)
    logs = {each.count: np.log(np.array(each.step_s) / each.samples) for each in ordered}
    squares = sum(float(((own - own.mean()) ** 2).sum()) for own in logs.values())
    freedom = sum(len(own) - 1 for own in logs.values()) + prior.noise_freedom
    noise = np.sqrt((squares + prior.noise_freedom * prior.noise**2) / freedom)
    found = {}
    for count, own in logs.items():
        for fewer in (each for smaller, each in logs.items() if smaller < count):
            reach = stdtrit(freedom, (1 + LEVEL) / 2) * noise * np.sqrt(1 / len(own) + 1 / len(fewer))
            gain = float(fewer.mean() - own.mean())
            if gain > reach + np.log1p(SAME):
                found[count] = max(found.get(count, 0.0), float(np.exp(gain)))
    return found
