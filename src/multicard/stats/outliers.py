"""Find the values of a series that are far above the others, such as the times of steps that stall."""

import numpy as np

# In a series with fewer values than this, no value counts as far above the others.
FEWEST_VALUES = 8
# A value is beyond the fence if it is more than this many interquartile ranges above the upper quartile: John Tukey's
# outer fence (Exploratory Data Analysis, 1977).
OUTER_FENCE = 3.0
# A value must also be more than this many times the median, because among nearly equal values even small differences
# lie beyond the fence.
LEAST_RATIO = 1.5
# Smaller values are replaced by this one before logarithms are taken, because 0 has none.
SMALLEST = 1e-9


def far_above(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values that are far above the others; all False if there are fewer than `FEWEST_VALUES`.

    The logarithm of such a value lies beyond Tukey's outer fence of all logarithms, and the value is above 1.5 times
    the median.

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
