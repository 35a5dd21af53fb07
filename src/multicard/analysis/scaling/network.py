"""How long the collectives of a step take alone, by what was measured of all-reduces on a machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from multicard.analysis.scaling.alpha_beta import AlphaBeta
from multicard.analysis.scaling.posterior import Array
from multicard.analysis.statistics import Interval
from multicard.experiment.workload import Traffic
from multicard.trace.collectives import bus_bytes

TWO_SIDED = 1.96  # standard errors of a 95% interval


@dataclass(frozen=True)
class Network:
    """What is known of communication beside the runs: fits of all-reduces by devices, and collectives of a step.

    `traffic` gives those of a rank on so many devices. `hideable_s`: seconds of a step that computing could hide at
    most, the backward pass, where it is known.
    """

    fits: Mapping[int, AlphaBeta]
    traffic: Callable[[int], Sequence[Traffic]]
    hideable_s: float | None = None

    def alone_s(self, devices: int, ring: Array, latency: Array, bandwidth: Array) -> Array:
        """Seconds that the collectives of a step take, in each draw.

        Between the counts whose all-reduces were measured α and β are interpolated. Beyond the largest, β stays, since
        the bus bandwidth of a node does not depend on the devices, and α grows as a ring's steps (n − 1), a tree's
        (log2 n), or between these.

        Parameters
        ----------
        devices
            Devices that communicate.
        ring
            0 for the growth of a tree, 1 for that of a ring.
        latency, bandwidth
            Errors of log α and log β, in standard errors.
        """
        traffic, counts = self.traffic(devices), sorted(self.fits)
        if devices < 2 or not traffic:
            return np.zeros(len(ring))
        alpha_s, bytes_per_s = (
            np.exp(
                [np.log(interval.value) + standard_error(interval) * errors for interval in intervals]
            )  # counts × draws
            for intervals, errors in (
                ([self.fits[each].alpha_s for each in counts], latency),
                ([self.fits[each].beta_bytes_per_s for each in counts], bandwidth),
            )
        )
        upper = min(int(np.searchsorted(counts, devices)), len(counts) - 1)
        lower = max(upper - 1, 0)
        part = np.clip((devices - counts[lower]) / max(counts[upper] - counts[lower], 1), 0, 1)
        largest = counts[-1]
        tree, steps = np.log2(devices) / np.log2(largest), (devices - 1) / (largest - 1)
        grown = tree ** (1 - ring) * steps**ring if devices > largest else 1.0
        messages, bus = (
            sum(each.messages for each in traffic),
            sum(bus_bytes(each.collective, each.bytes, devices) for each in traffic),
        )
        latency_s = (alpha_s[lower] * (1 - part) + alpha_s[upper] * part) * grown
        return messages * latency_s + bus / (bytes_per_s[lower] * (1 - part) + bytes_per_s[upper] * part)


def standard_error(interval: Interval) -> float:
    """Standard error of the logarithm; 0 where the interval has no ends."""
    if interval.low is None or not 0 < interval.low < interval.high < np.inf:
        return 0.0
    return float(np.log(interval.high / interval.low)) / (2 * TWO_SIDED)
