"""The work of a training step, by which runs on several numbers of devices are comparable.

Under weak scaling every device computes as much as before, so the work of a step grows with the devices. Under strong
scaling the devices share the work of one.
"""

from statistics import median

import numpy as np
from numpy.typing import ArrayLike

from multicard.results.configuration import Configuration

# Relative difference up to which two amounts of work are the same: a last batch that is cut, or texts of other lengths.
SAME_WORK = 0.05


def is_same_work(work: ArrayLike, reference: ArrayLike) -> bool:
    """True if amounts of work differ from a reference by at most `SAME_WORK` of it; False if one is not a number.

    >>> is_same_work([62, 66], 64), is_same_work([62, 70], 64)
    (True, False)
    """
    return bool(np.allclose(work, reference, rtol=SAME_WORK))


def work_of_step(configuration: Configuration) -> float | None:
    """Return the work of a step of all devices, in the unit of the rate: distinct samples, or tokens.

    It is the mean rate times the mean time of a step. None if one of them is not known.
    """
    rate = configuration.mean(configuration.rate)
    step_s = configuration.mean("iteration_time_s")
    return rate * step_s if rate and step_s else None


def samples_per_device(configuration: Configuration) -> float | None:
    """Return how many samples a device computes in a step, or units of work if samples are not counted.

    Samples that several ranks repeat count for each of them, unlike in `work_of_step`. It is a count, the same in each
    repeat but for rounding, so the median is taken. None if no rate is known.
    """
    step_s = configuration.blocks("iteration_time_s")
    for rate in ("processed_samples_per_s", configuration.rate):
        rates = configuration.blocks(rate)
        samples = [rates[block] * step_s[block] for block in rates if block in step_s]
        if samples:
            return round(median(samples) / configuration["devices"], 6)
    return None
