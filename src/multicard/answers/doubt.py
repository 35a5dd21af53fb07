"""Why a ratio is no answer yet, in words, and what would make it one."""

from multicard.core.units import number
from multicard.stats.interval import Interval, verdict

SCATTERED = "too scattered to tell"
REMEDY = "more repeats on an idle machine would tell"


def scatter_words(ratio: Interval) -> str:
    """Return that the repeats of a ratio are too scattered to show a difference, and how far; else an empty text.

    A ratio that shows a difference is an answer, however wide its interval is.

    >>> scatter_words(Interval(1.2, 0.37, 3.8, 3, p_value=0.4, measured=(0.7, 1.9)))
    'too scattered to tell (0.7× to 1.9× measured, n=3)'
    >>> scatter_words(Interval(2.2, 1.2, 3.8, 3, p_value=0.04)), scatter_words(Interval(1.0, 0.9, 1.1, 3, p_value=0.9))
    ('', '')
    """
    if verdict(ratio) != "none" or not ratio.is_wide:
        return ""
    repeats = f"n={ratio.counts or ratio.repeats}"
    if ratio.measured is None:
        return f"{SCATTERED} ({repeats})"
    least, largest = map(number, ratio.measured)
    return f"{SCATTERED} ({least}× to {largest}× measured, {repeats})"
