"""The work of a training step, which makes runs on different numbers of devices comparable.

Under weak scaling every device computes as much as before, so the work of a step grows with the devices. Under strong
scaling the devices share the work that one device does in a step.
"""

from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from multicard.results.configuration import Configuration

# The measure of how long a step takes.
STEP_TIME = "iteration_time_s"
# The measure of how many samples all ranks compute per second; one that several ranks compute counts for each.
PROCESSED_SAMPLES = "processed_samples_per_s"
# Two amounts of work count as the same if they differ by at most this share. A smaller last batch or texts of different
# lengths may make such a difference.
SAME_WORK = 0.05


def is_same_work(work: ArrayLike, reference: ArrayLike) -> bool:
    """True if amounts of work differ from a reference by at most `SAME_WORK` of it; False if one is not a number.

    >>> is_same_work([62, 66], 64), is_same_work([62, 70], 64)
    (True, False)
    """
    return bool(np.allclose(work, reference, rtol=SAME_WORK))


def work_of_step(configuration: Configuration) -> float | None:
    """Return the work of a step on all devices together, in the unit of the rate: distinct samples, or tokens.

    It is the mean rate times the mean time of a step. None if the rate or the time is not known.
    """
    rate = configuration.mean(configuration.rate)
    step_s = configuration.mean(STEP_TIME)
    return rate * step_s if rate and step_s else None


def samples_per_device(configuration: Configuration) -> float | None:
    """Return how many samples a device computes in a step, or how many units of work if samples are not counted.

    A sample that several ranks compute counts for each of them, unlike in `work_of_step`. The number is the same in
    each repeat except for rounding, so the median over repeats is returned. None if no rate is known.
    """
    step_s = configuration.blocks(STEP_TIME)
    for rate in (PROCESSED_SAMPLES, configuration.rate):
        rates = configuration.blocks(rate)
        samples = [rates[block] * step_s[block] for block in rates if block in step_s]
        if samples:
            return round(median(samples) / configuration["devices"], 6)
    return None
