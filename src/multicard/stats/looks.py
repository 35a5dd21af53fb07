"""Intervals that stay valid if repeats are added until the results are clear.

Whoever looks at an interval after each repeat, and stops when it suits, sees too narrow intervals: one of several
intervals misses the true value more often than a single one. Each *look* therefore uses a smaller limit of the p-value
than 0.05, the same one at all looks, so that the probability that any of them misses the true value is 5%. Such
repeated confidence intervals hold whenever, and for whatever reason, no more repeats are added. (Christopher Jennison
and Bruce Turnbull, Journal of the Royal Statistical Society B 51(3), 1989; one limit at all looks: Stuart Pocock,
Biometrika 64(2), 1977.)
"""

from functools import cache

import numpy as np
from scipy.special import stdtr

from multicard.stats.interval import LEVEL

# Simulated sequences of repeats. With so many, the error of the probability is 0.07 percentage points.
SEQUENCES = 100_000
# Sequences that are simulated together, to limit memory.
TOGETHER = 10_000


def level_of_look(looks: int, level: float = LEVEL) -> float:
    """Return the level of the interval of each look, so that all intervals of so many looks hold with `level`.

    It is exact for `LEVEL` and the ratio of two configurations, whose interval at a look rests on their own repeats
    alone. Intervals that pool the scatter of more configurations change less from look to look, so that they hold
    slightly more often. For other levels it is Bonferroni's.

    >>> level_of_look(1), level_of_look(4, 0.99)
    (0.95, 0.9975)
    """
    if looks <= 1:
        return level
    if level == LEVEL:
        return 1 - critical_p_value(looks)
    return 1 - (1 - level) / looks


def p_value_of_look(p_value: float, looks: int) -> float:
    """Return a p-value of one of so many looks, corrected: it is at most 0.05 if the interval excludes the hypothesis.

    The probability that the corrected value of any look is at most x is at most x, if the hypothesis is true. For small
    x this is Bonferroni's bound.

    >>> p_value_of_look(0.03, 1), p_value_of_look(1e-6, 9)
    (0.03, 9e-06)
    """
    if looks <= 1:
        return p_value
    error = 1 - LEVEL
    critical = critical_p_value(looks)
    if p_value <= critical:
        return min(error, looks * p_value)
    return min(1.0, p_value * error / critical)


@cache
def critical_p_value(looks: int) -> float:
    """Return the p-value that the smallest one of so many looks falls below with the probability 1 − `LEVEL`.

    The looks are after 2, 3, … repeats of two configurations that do not differ, whose ratios in the repeats are
    lognormal. Each look is Student's paired test of all repeats so far. The value is simulated with a fixed seed.

    A single look needs no correction. For many looks it lies between Bonferroni's limit, 0.05 divided by their number,
    and 0.05:

    >>> round(critical_p_value(1), 3), 0.05 / 9 < critical_p_value(9) < 0.05
    (0.05, True)
    """
    generator = np.random.default_rng(0)
    smallest = [_smallest_p_values(generator, looks) for _ in range(SEQUENCES // TOGETHER)]
    return float(np.quantile(np.concatenate(smallest), 1 - LEVEL))


def _smallest_p_values(generator: np.random.Generator, looks: int) -> np.ndarray:
    """Return the smallest p-value of all looks for each of `TOGETHER` simulated sequences of repeats."""
    # The logarithms of the ratios: a row per sequence, a column per repeat.
    differences = generator.normal(size=(TOGETHER, looks + 1))
    counts = np.arange(1, looks + 2)
    sums = np.cumsum(differences, axis=1)
    sums_of_squares = np.cumsum(differences**2, axis=1) - sums**2 / counts
    # A single repeat has no test.
    freedom = counts[1:] - 1.0
    standard_errors = np.sqrt(sums_of_squares[:, 1:] / freedom / counts[1:])
    statistics = sums[:, 1:] / counts[1:] / standard_errors
    p_values = 2 * stdtr(freedom, -np.abs(statistics))
    return np.asarray(p_values.min(axis=1))
