"""The interval of a proportion: how often something was the case among independent observations."""

import math

from scipy.special import ndtri

from multicard.stats.interval import LEVEL, Interval


def proportion(count: int, total: int) -> Interval:
    """Return `count` of `total` as a share from 0 to 1, with its score interval (Edwin Wilson, JASA 22, 1927).

    `total` is at least 1, and becomes the number of repeats of the interval.

    >>> share = proportion(8, 10)  # as in the tables of Robert Newcombe, Statistics in Medicine 17, 1998
    >>> share.value, round(share.low, 4), round(share.high, 4)
    (0.8, 0.4902, 0.9433)
    """
    share = count / total
    squared = float(ndtri((1 + LEVEL) / 2)) ** 2
    middle = share + squared / (2 * total)
    width = math.sqrt(squared * (share * (1 - share) + squared / (4 * total)) / total)
    scale = 1 + squared / total
    low = max(0.0, (middle - width) / scale)  # rounding may give less than 0
    high = min(1.0, (middle + width) / scale)
    return Interval(share, low, high, repeats=total)
