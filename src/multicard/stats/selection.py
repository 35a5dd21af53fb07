"""Tests and intervals of comparisons that their own values chose: the best of several, and one chosen from several.

A test of one comparison is wrong in 5%. The largest of several differences exceeds its limit more often, so what was
chosen because it is large needs a higher limit.

- Between any two of several configurations the studentized range holds, whichever two are compared (John Tukey, The
  Problem of Multiple Comparisons, 1953; for unequal variances Paul Games and John Howell, Journal of Educational
  Statistics 1(2), 1976).
- Between one that was chosen from several, and a baseline that was not, Dunnett's test of many to one does (Charles
  Dunnett, Journal of the American Statistical Association 50(272), 1955).
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.special import chdtri, ndtr, stdtrit

from multicard.stats.interval import LEVEL, Interval, is_significant
from multicard.stats.student import critical_value, statistic_of

# Points of each Gauss-Legendre quadrature; with these p-values have six correct digits.
NODES = 64
# Standard deviations to both sides over which the normal distribution of the baseline is integrated.
WIDEST = 8.0


def with_range_p_value(ratio: Interval, count: int) -> Interval:
    """Return a ratio with the p-value of a comparison of any two of `count` configurations."""
    if ratio.p_value is None or ratio.freedom is None:
        return ratio
    return replace(ratio, p_value=studentized_range_p_value(ratio.p_value, ratio.freedom, count))


def studentized_range_p_value(p_value: float, freedom: float, count: int) -> float:
    """Return the p-value of a t test as that of one between any two of `count` configurations.

    What a single comparison would not show is returned as it is, and Bonferroni's bound where that shows a difference,
    since neither verdict depends on the exact value.

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

    # The range is that of single values, of which two differ with √2 times the standard deviation of one.
    studentized_difference = math.sqrt(2) * statistic_of(p_value, freedom)
    return float(studentized_range.sf(studentized_difference, count, max(freedom, 1.0)))


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
    half_width = math.log(ratio.high / ratio.value)
    critical_of_chosen = dunnett_critical_value(count, ratio.freedom, level)
    wider = half_width * critical_of_chosen / critical_value(ratio.freedom, level)
    p_value = dunnett_p_value(statistic_of(ratio.p_value, ratio.freedom), count, ratio.freedom)
    return replace(
        ratio,
        low=ratio.value * math.exp(-wider),
        high=ratio.value * math.exp(wider),
        # Neither less than of one comparison, nor more than Bonferroni's bound, whatever the quadrature's error.
        p_value=float(np.clip(p_value, ratio.p_value, count * ratio.p_value)),
    )


@cache
def dunnett_critical_value(count: int, freedom: float, level: float = LEVEL) -> float:
    """Return the value that the largest of `count` t values against one baseline exceeds in 1 − `level` of all cases.

    >>> round(dunnett_critical_value(4, 20.0), 2)  # Dunnett's table of 1964, two-sided, 5%
    2.65
    """
    from scipy.optimize import brentq

    error = 1 - level
    of_one_comparison = float(stdtrit(freedom, 1 - error / 2))
    bonferroni = float(stdtrit(freedom, 1 - error / 2 / count))

    def excess(statistic: float) -> float:
        return dunnett_p_value(statistic, count, freedom) - error

    return float(brentq(excess, 0.99 * of_one_comparison, 1.01 * bonferroni))


def dunnett_p_value(statistic: float, count: int, freedom: float) -> float:
    """Return the p-value, two-sided, of the largest of `count` t values against one baseline.

    Means x_i of k = `count` configurations and that of the baseline, z, have equal variances. The t values
    (x_i − z) / (√2 s) have correlations of a half, but given z and the estimated standard deviation s they are
    independent. In units of the true standard deviation each lies within ±t exactly if x_i lies within z ± √2 t s, so

        p  =  1 − ∫∫ [Φ(z + √2 t s) − Φ(z − √2 t s)]^k  φ(z) dz  f(s) ds

    where φ and Φ are the normal density and distribution, and freedom × s² has a chi-squared distribution.

    >>> round(dunnett_p_value(2.228, 1, 10.0), 4), round(dunnett_p_value(2.57, 2, 10.0), 3)  # Dunnett's table: 2.57
    (0.05, 0.05)
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # The outer integral is over the quantiles of s, from 0 to 1, which makes f(s) ds uniform.
    quantiles, quantile_weights = (nodes + 1) / 2, weights / 2
    deviations = np.sqrt(chdtri(freedom, 1 - quantiles) / freedom)
    # The inner integral is from −WIDEST to WIDEST.
    baseline = WIDEST * nodes
    baseline_steps = WIDEST * 2 * quantile_weights
    normal_density = np.exp(-(baseline**2) / 2) / math.sqrt(2 * math.pi)
    reach = math.sqrt(2) * abs(statistic) * deviations[:, np.newaxis]
    one_inside = ndtr(baseline + reach) - ndtr(baseline - reach)
    all_inside_given_deviation = one_inside**count @ (normal_density * baseline_steps)
    all_inside = quantile_weights @ all_inside_given_deviation
    return float(min(1.0, max(0.0, 1 - all_inside)))
