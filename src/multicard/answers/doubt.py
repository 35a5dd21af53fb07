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


def undecided_words(name: str, base_name: str, ratio: Interval) -> str:
    """Return that no difference is shown between two configurations, or why that cannot be told; else an empty text.

    `ratio`: the speed of the first over that of the second.

    >>> undecided_words("ddp", "dp", Interval(1.02, 0.95, 1.09, 3, p_value=0.5))
    'no difference shown between ddp and dp: 1.02× (95% CI 0.95 to 1.09, n=3)'
    >>> undecided_words("ddp", "dp", Interval(1.2, 0.37, 3.8, 3, p_value=0.4, measured=(0.7, 1.9)))
    'ddp against dp: too scattered to tell (0.7× to 1.9× measured, n=3); more repeats on an idle machine would tell'
    >>> undecided_words("ddp", "dp", Interval(1.2, 1.1, 1.3, 3, p_value=0.01))
    ''
    """
    if verdict(ratio) != "none":
        return ""
    scattered = scatter_words(ratio)
    if scattered:
        return f"{name} against {base_name}: {scattered}; {REMEDY}"
    return f"no difference shown between {name} and {base_name}: {ratio.format(unit='×')}"
