"""The time of a collective by its latency α and its bandwidth β: T = α + w / β, for w bytes that cross a link.

With w as bus bandwidth counts it, 2 (n - 1) / n times the message of an all-reduce between n devices, β is the bus
bandwidth that large messages approach. Roger Hockney, Parallel Computing 20(3), 1994; nccl-tests, doc/PERFORMANCE.md.

Times scatter in proportion to themselves, so their logarithms are fitted, by which α and β are above zero. Libraries
change their algorithm with the size of a message, which a line does not follow: that is in the residual, and in the
intervals, which are the t intervals of the logarithms (95%).
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit
from scipy.special import stdtrit

from multicard.analysis.statistics import LEVEL, Interval

FEWEST = 3  # sizes, so that a degree of freedom is left


@dataclass(frozen=True)
class AlphaBeta:
    """What was fitted.

    Attributes
    ----------
    alpha_s
        Latency in seconds.
    beta_bytes_per_s
        Bandwidth.
    residual
        Typical deviation of a time from the line, as a share of it.
    """

    alpha_s: Interval
    beta_bytes_per_s: Interval
    residual: float

    def time_s(self, work: Sequence[float] | np.ndarray) -> np.ndarray:
        """Give T for each number of bytes."""
        return self.alpha_s.value + np.asarray(work, dtype=float) / self.beta_bytes_per_s.value


def fit(work: Sequence[float], times: Sequence[float]) -> AlphaBeta | None:
    """Fit α and β to seconds for so many bytes, a size each; None below `FEWEST` sizes, or where none fits."""
    w, t = np.asarray(work, dtype=float), np.asarray(times, dtype=float)
    if len(w) < FEWEST:
        return None

    def log_time(log_work: np.ndarray, log_alpha: float, log_inverse: float) -> np.ndarray:
        return np.logaddexp(log_alpha, log_work + log_inverse)

    start = np.log([t.min(), (t / w).min()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # α or β is not to be told: its interval has no end
        try:
            found, covariance = curve_fit(log_time, np.log(w), np.log(t), start)
        except RuntimeError:
            return None
    freedom = len(w) - len(found)
    error = np.sqrt(((np.log(t) - log_time(np.log(w), *found)) ** 2).sum() / freedom)
    reach = stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(np.diag(covariance))
    log_alpha, log_inverse = found
    alpha, beta = _interval(log_alpha, reach[0], len(w)), _interval(-log_inverse, reach[1], len(w))
    return AlphaBeta(alpha, beta, float(np.expm1(error)))


def _interval(log_value: float, reach: float, sizes: int) -> Interval:
    """From logarithms; without bounds where they are not to be told."""
    if not np.isfinite(reach):
        return Interval(float(np.exp(log_value)), None, None, sizes)
    value, low, high = (float(np.exp(log_value + by)) for by in (0, -reach, reach))
    return Interval(value, low, high, sizes, coverage=LEVEL)
