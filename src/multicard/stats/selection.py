"""Tests and intervals of comparisons for which a configuration was chosen from several by its own value.

A test of one comparison wrongly shows a difference with a probability of 5%. The largest of several differences exceeds
the limit of this test more often. So a difference that was chosen because it is large needs a higher limit.

- Both configurations are from the set from which the choice was made: the studentized range is valid for any two of
  them (John Tukey, The Problem of Multiple Comparisons, 1953; for unequal variances Paul Games and John Howell, Journal
  of Educational Statistics 1(2), 1976).
- One is chosen from several and compared with a baseline that was not chosen: Dunnett's test of many to one (Charles
  Dunnett, Journal of the American Statistical Association 50(272), 1955).
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.special import chdtri, ndtr, stdtrit

from multicard.stats.interval import LEVEL, Interval, is_significant
from multicard.stats.student import critical_value, statistic_of

# Points of each Gauss-Legendre quadrature. With 64 points, p-values have six correct digits.
NODES = 64
# The normal distribution of the baseline is integrated over so many standard deviations to each side.
WIDEST = 8.0


def with_range_p_value(ratio: Interval, count: int) -> Interval:
    """Return a ratio with its p-value replaced by that for any two of `count` configurations.

    A ratio without p-value or degrees of freedom is returned as it is.
    """
    if ratio.p_value is None or ratio.freedom is None:
        return ratio
    return replace(ratio, p_value=studentized_range_p_value(ratio.p_value, ratio.freedom, count))


def studentized_range_p_value(p_value: float, freedom: float, count: int) -> float:
    """Return the p-value of a t test, corrected for a comparison of any two of `count` configurations.

    The corrected value lies between `p_value` and Bonferroni's bound, the number of pairs × `p_value`. If `p_value` is
    above 0.05, it is returned as it is. If the bound is at most 0.05, the bound is returned. In both cases the exact
    value would lead to the same verdict.

    >>> studentized_range_p_value(0.2, 10.0, 4), round(studentized_range_p_value(0.001, 10.0, 4), 6)  # 6 pairs
    (0.2, 0.006)
    """
    if not is_significant(p_value):
        return p_value
    pairs = count * (count - 1) / 2
    bonferroni = pairs * p_value
    if is_significant(bonferroni):
        return bonferroni
    from scipy.stats import studentized_range

    # The studentized range is measured in standard deviations of one value, t in those of a difference of two values,
    # which are √2 times as large.
    studentized_difference = math.sqrt(2) * statistic_of(p_value, freedom)
    return float(studentized_range.sf(studentized_difference, count, max(freedom, 1.0)))


def chosen_among(ratio: Interval, count: int) -> Interval:
    """Return the ratio to a baseline of a configuration that was chosen from `count` by its own value.

    The returned bounds are wider and the p-value is larger, so that they hold for the ratios of all `count`
    configurations at once, and so for the chosen one. The value stays as measured. It is the best of several, so it is
    larger than the true value on average.

    The ratio is returned as it is if `count` is 1 or less, if it has no p-value, degrees of freedom or bounds, or if
    its bounds are equal.

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
    # Half the width of an interval, in logarithms, is proportional to the critical value.
    half_width = math.log(ratio.high / ratio.value)
    critical_of_one = critical_value(ratio.freedom, level)
    critical_of_chosen = dunnett_critical_value(count, ratio.freedom, level)
    wider = half_width * critical_of_chosen / critical_of_one

    statistic = statistic_of(ratio.p_value, ratio.freedom)
    p_value = dunnett_p_value(statistic, count, ratio.freedom)
    # At least the p-value of one comparison and at most Bonferroni's bound, in spite of errors of the quadrature.
    bonferroni = count * ratio.p_value
    p_value = float(np.clip(p_value, ratio.p_value, bonferroni))

    low = ratio.value * math.exp(-wider)
    high = ratio.value * math.exp(wider)
    return replace(ratio, low=low, high=high, p_value=p_value)


@cache
def dunnett_critical_value(count: int, freedom: float, level: float = LEVEL) -> float:
    """Return the value that the largest of `count` absolute t values exceeds with the probability 1 − `level`.

    The t values compare `count` configurations with the same baseline, and no difference exists.

    >>> round(dunnett_critical_value(4, 20.0), 2)  # Dunnett's table of 1964, two-sided, 5%
    2.65
    """
    from scipy.optimize import brentq

    error = 1 - level
    error_of_tail = error / 2

    def excess(statistic: float) -> float:
        return dunnett_p_value(statistic, count, freedom) - error

    # The value lies between that of one comparison and Bonferroni's. The margins allow for errors of the quadrature.
    of_one_comparison = float(stdtrit(freedom, 1 - error_of_tail))
    bonferroni = float(stdtrit(freedom, 1 - error_of_tail / count))
    return float(brentq(excess, 0.99 * of_one_comparison, 1.01 * bonferroni))


def dunnett_p_value(statistic: float, count: int, freedom: float) -> float:
    """Return the two-sided p-value of `statistic`, the largest of `count` t values against the same baseline.

    The means x_i of k = `count` configurations and the mean z of the baseline have equal variances. The t values are
    (x_i − z) / (√2 s), where s is the estimated standard deviation. Any two of them have a correlation of 1/2, but for
    given z and s they are independent. In units of the true standard deviation, a t value lies within ±t exactly if x_i
    lies within z ± √2 t s, so

        p  =  1 − ∫∫ [Φ(z + √2 t s) − Φ(z − √2 t s)]^k  φ(z) dz  f(s) ds

    where φ and Φ are the normal density and distribution, and freedom × s² has a chi-squared distribution.

    >>> round(dunnett_p_value(2.228, 1, 10.0), 4), round(dunnett_p_value(2.57, 2, 10.0), 3)  # Dunnett's table: 2.57
    (0.05, 0.05)
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # The outer integral is over the probability of s, from 0 to 1, instead of over s: f(s) ds is then constant.
    probabilities = (nodes + 1) / 2
    probability_weights = weights / 2
    chi_squared = chdtri(freedom, 1 - probabilities)
    deviations = np.sqrt(chi_squared / freedom)
    # The inner integral is over z, from −WIDEST to WIDEST.
    baseline = WIDEST * nodes
    baseline_weights = WIDEST * weights
    normal_density = np.exp(-(baseline**2) / 2) / math.sqrt(2 * math.pi)

    # A row for each s, a column for each z.
    reach = math.sqrt(2) * abs(statistic) * deviations[:, np.newaxis]
    one_inside = ndtr(baseline + reach) - ndtr(baseline - reach)
    all_inside_given_both = one_inside**count
    all_inside_given_deviation = all_inside_given_both @ (normal_density * baseline_weights)
    all_inside = probability_weights @ all_inside_given_deviation
    return float(min(1.0, max(0.0, 1 - all_inside)))
