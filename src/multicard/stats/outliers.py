"""Values of a series that are far above the others, such as the times of steps that stall."""

import numpy as np

# Values from which on some can be told from the others.
FEWEST_VALUES = 8
# Quartile ranges beyond the upper quartile: John Tukey's outer fence (Exploratory Data Analysis, 1977).
OUTER_FENCE = 3.0
# Times the median that such a value is, at least: among nearly equal values even small differences pass the fence.
LEAST_RATIO = 1.5
# Values count as at least this much, since 0 has no logarithm.
SMALLEST = 1e-9


def far_above(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that are far above the others; all False if there are fewer than `FEWEST_VALUES`.

    They are beyond Tukey's outer fence of the logarithms, and above 1.5 times the median.

    >>> far_above(np.array([10.0, 11.0, 10.0, 12.0, 11.0, 10.0, 11.0, 200.0]))
    array([False, False, False, False, False, False, False,  True])
    """
    if len(values) < FEWEST_VALUES:
        return np.zeros(len(values), dtype=bool)
    logarithms = np.log(values.clip(SMALLEST))
    lower_quartile, upper_quartile = np.quantile(logarithms, [0.25, 0.75])
    fence = upper_quartile + OUTER_FENCE * (upper_quartile - lower_quartile)
    is_beyond_fence = logarithms > fence
    is_far_longer = values > LEAST_RATIO * np.median(values)
    return is_beyond_fence & is_far_longer
