"""Tests and intervals of comparisons that their own values chose: the best of several, and one chosen from several.

Between any two of several configurations the studentized range holds, whichever two are compared (John Tukey, The
Problem of Multiple Comparisons, 1953; for unequal variances Paul Games and John Howell, Journal of Educational
Statistics 1(2), 1976). Between one that was chosen from several, and a baseline that was not, Dunnett's test of many to
one does (Charles Dunnett, Journal of the American Statistical Association 50(272), 1955).
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.special import chdtri, ndtr, stdtrit

from multicard.stats.interval import LEVEL, Interval

NODES = 64  # of Gauss-Legendre quadrature: p-values have six correct digits
WIDEST = 8.0  # standard deviations up to which the normal distribution of the baseline is integrated


def with_range_p_value(ratio: Interval, count: int) -> Interval:
    """Return a ratio with the p-value of a comparison of any two of `count` configurations."""
    if ratio.p_value is None or ratio.freedom is None:
        return ratio
    return replace(ratio, p_value=studentized_range_p_value(ratio.p_value, ratio.freedom, count))


def studentized_range_p_value(p_value: float, freedom: float, count: int) -> float:
    """Return the p-value of a t test as that of one between any two of `count` configurations.

    >>> studentized_range_p_value(0.2, 10.0, 4), round(studentized_range_p_value(0.001, 10.0, 4), 6)  # 6 pairs
    (0.2, 0.006)
    """
    if p_value > 1 - LEVEL:
        return p_value
    pairs = count * (count - 1) / 2
    # Bonferroni's bound, which is above the exact value, is enough where it shows a difference.
    if pairs * p_value <= 1 - LEVEL:
        return pairs * p_value
    from scipy.stats import studentized_range

    statistic = -float(stdtrit(freedom, p_value / 2))
    return float(studentized_range.sf(math.sqrt(2) * statistic, count, max(freedom, 1.0)))


def chosen_among(ratio: Interval, count: int) -> Interval:
    """Return a ratio to a baseline, of the configuration that its own value chose from `count`.

    Bounds and p-value hold for the ratios of all of them to their baselines at once, and so for whichever was chosen.
    The value stays as measured: it is the best of several, which is more than the truth in the mean.

    >>> alone = Interval(1.02, 1.0, 1.0404, 3, LEVEL, 0.0496, freedom=10.0)
    >>> chosen_among(alone, 1) is alone
    True
    >>> chosen = chosen_among(alone, 2)
    >>> round(math.log(chosen.high / chosen.low) / math.log(alone.high / alone.low), 3)  # 2.568 / 2.228
    1.153
    """
    if count <= 1 or ratio.p_value is None or ratio.freedom is None:
        return ratio
    if ratio.high is None or ratio.low == ratio.high:
        return ratio
    level = ratio.coverage or LEVEL
    reach = math.log(ratio.high / ratio.value)
    single_critical_value = float(stdtrit(ratio.freedom, (1 + level) / 2))
    wider = reach * dunnett_critical_value(count, ratio.freedom, level) / single_critical_value
    statistic = -float(stdtrit(ratio.freedom, ratio.p_value / 2))
    p_value = dunnett_p_value(statistic, count, ratio.freedom)
    return replace(
        ratio,
        low=ratio.value * math.exp(-wider),
        high=ratio.value * math.exp(wider),
        # Neither less than of one comparison, nor more than Bonferroni's bound, whatever the quadrature's error.
        p_value=float(np.clip(p_value, ratio.p_value, count * ratio.p_value)),
    )


@cache
def dunnett_critical_value(count: int, freedom: float, level: float = LEVEL) -> float:
    """Return what the largest of `count` t values against one baseline exceeds with a probability of 1 − `level`.

    >>> round(dunnett_critical_value(4, 20.0), 2)  # Dunnett's table of 1964, two-sided, 5%
    2.65
    """
    from scipy.optimize import brentq

    smallest = float(stdtrit(freedom, 1 - (1 - level) / 2))  # of one comparison
    largest = float(stdtrit(freedom, 1 - (1 - level) / 2 / count))  # Bonferroni's

    def excess(statistic: float) -> float:
        return dunnett_p_value(statistic, count, freedom) - (1 - level)

    return float(brentq(excess, 0.99 * smallest, 1.01 * largest))


def dunnett_p_value(statistic: float, count: int, freedom: float) -> float:
    """Return the p-value, two-sided, of the largest of `count` t values against one baseline.

    The configurations and the baseline have equal variances, and the t values thus correlations of a half. Given the
    value of the baseline and the estimated standard deviation, they are independent: the integral is over these two.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # The standard deviation, over the true one, at the quadrature's quantiles from 0 to 1.
    quantiles, quantile_weights = (nodes + 1) / 2, weights / 2
    deviations = np.sqrt(chdtri(freedom, 1 - quantiles) / freedom)
    # The baseline's value, in standard deviations.
    baseline, step = WIDEST * nodes, WIDEST * 2 * quantile_weights
    density = np.exp(-(baseline**2) / 2) / math.sqrt(2 * math.pi) * step
    reach = math.sqrt(2) * abs(statistic) * deviations[:, np.newaxis]
    all_inside = (ndtr(baseline + reach) - ndtr(baseline - reach)) ** count
    return float(min(1.0, max(0.0, 1 - quantile_weights @ (all_inside @ density))))
