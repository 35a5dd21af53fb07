"""How many repeats show a difference between two configurations, given how much repeats scatter."""

import math

from scipy.special import nctdtr

from multicard.stats.interval import LEVEL
from multicard.stats.student import critical_value

# A difference counts as visible if so large a share of experiments shows it.
POWER = 0.8
# More repeats than these are not looked for.
MOST_REPEATS = 1000


def repeats_to_show(ratio: float, scatter: float, samples: int = 2) -> int | None:
    """Return how many repeats of each configuration show a ratio of two in 80% of experiments; None if above 1000.

    The test is Student's at 5%. The variance of the difference of two means is 2 scatter² / n; its degrees of freedom
    are those of the scatter that all samples share, (samples − 1)(n − 1).

    Parameters
    ----------
    ratio
        The true ratio of two configurations, such as 1.02.
    scatter
        Standard deviation of the logarithms of the values of one configuration, without what blocks have in common.
    samples
        Number of configurations from which the scatter is known, at least two.

    In books of statistics, a difference of one standard deviation takes 17 values of each of two samples, whose degrees
    of freedom are 2 (n − 1):

    >>> repeats_to_show(math.e ** 0.1, 0.1, samples=3)
    17
    """
    difference = abs(math.log(ratio))
    for repeats in range(2, MOST_REPEATS + 1):
        freedom = (samples - 1) * (repeats - 1)
        if power(difference / (scatter * math.sqrt(2 / repeats)), freedom) >= POWER:
            return repeats
    return None


def power(effect: float, freedom: float) -> float:
    """Return the probability that Student's test at 5% shows an effect of so many standard errors.

    >>> round(power(0.0, 10.0), 3)
    0.05
    """
    critical = critical_value(freedom, LEVEL)
    return float(1 - nctdtr(freedom, effect, critical) + nctdtr(freedom, effect, -critical))
