"""Sentences that several captions share."""

# The bounds that `analysis.statistics` gives: those of few repeats are their range, which is no interval.
REPEATS = "are the range of two to five repeats, from six on the exact interval of the median (95% coverage or more)"
RATIOS = "are 95% t intervals of the logarithms of ratios, paired by repeat, and cut where they leave the panel"
NONE = "a single repeat has none"

POINTS = f"Points are medians over repeats. Whiskers {REPEATS}; {NONE}."
BARS = f"Bars are medians over repeats. Whiskers {REPEATS}; {NONE}."
MARKS = (
    "A hollow mark shows no difference at the 5% level, corrected by Holm's method for all points of the figure. A "
    "half-filled mark is a single repeat, which has no whiskers and cannot tell."
)
SUMMED = "Overlapping durations add up, so this is not wall time. Bars are means over repeats."
