"""Student's t distribution: critical values of intervals, and p-values.

A statistic is the distance of an estimate from a hypothesis, in standard errors. The fewer degrees of freedom the
standard error has, the farther the statistic may lie from 0 by chance.
"""

from scipy.special import stdtr, stdtrit

from multicard.stats.interval import LEVEL


def critical_value(freedom: float, level: float = LEVEL) -> float:
    """Return how many standard errors an interval with the coverage `level` reaches to each side of its estimate.

    >>> round(critical_value(2.0), 3), round(critical_value(10.0), 3)  # as in the tables of any book of statistics
    (4.303, 2.228)
    """
    return float(stdtrit(freedom, (1 + level) / 2))


def two_sided_p_value(statistic: float, freedom: float) -> float:
    """Return the probability that a statistic lies at least as far from 0 by chance, to either side.

    >>> round(two_sided_p_value(-4.303, 2.0), 4), two_sided_p_value(0.0, 2.0)
    (0.05, 1.0)
    """
    return 2 * float(stdtr(freedom, -abs(statistic)))


def statistic_of(p_value: float, freedom: float) -> float:
    """Return the statistic above 0 that has a two-sided p-value: the inverse of `two_sided_p_value`.

    >>> round(statistic_of(0.05, 2.0), 3)
    4.303
    """
    return -float(stdtrit(freedom, p_value / 2))
