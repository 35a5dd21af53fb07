"""Find steps that take longer because their batches hold more work, such as longer texts.

The work of a batch takes longer in the forward and in the backward pass alike. What stalls a step, such as saving or a
busy CPU, hits one of the two, or neither. Where ranks exchange gradients, the others wait in their backward passes, but
their forward passes are as usual. So a step has a larger batch if on one rank both passes are long.
"""

import numpy as np
import pandas as pd

from multicard.stats.outliers import LEAST_RATIO

# By more than this factor the two passes of a larger batch do not differ in how many times as long as usual they are.
ALIKE = 2.0


def have_larger_batches(forward_s: pd.DataFrame, backward_s: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each step whether its forward and backward passes are both longer than usual on one rank.

    `forward_s`, `backward_s`: seconds of the passes, with a row for each step, by its number, and a column for each
    rank; NaN for what was not recorded. Usual is the median of the rank. Both passes must take `LEAST_RATIO` times as
    long as usual or more, and about equally many times (`ALIKE`).

    In step 3 both passes take seven times as long; in step 2 only the forward pass is longer:

    >>> forward_s = pd.DataFrame({0: [2.0, 9.0, 14.0, 2.0, 2.0]}, index=[1, 2, 3, 4, 5])
    >>> backward_s = pd.DataFrame({0: [4.0, 4.0, 28.0, 4.0, 4.0]}, index=[1, 2, 3, 4, 5])
    >>> have_larger_batches(forward_s, backward_s).tolist()
    [False, False, True, False, False]
    """
    forward_times, backward_times = _times_of_usual(forward_s), _times_of_usual(backward_s)
    shorter = np.minimum(forward_times, backward_times)
    longer = np.maximum(forward_times, backward_times)
    # No comparison with NaN holds.
    is_larger: pd.Series[bool] = ((shorter >= LEAST_RATIO) & (longer <= ALIKE * shorter)).any(axis=1)
    return is_larger


def _times_of_usual(times_s: pd.DataFrame) -> pd.DataFrame:
    """Return how many times as long as the median of its rank each time is; NaN if that is 0."""
    usual_s = times_s.median()
    return times_s / usual_s.where(usual_s > 0)
