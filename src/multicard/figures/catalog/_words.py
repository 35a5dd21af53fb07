"""Sentences that several captions share."""

# The bounds that `analysis.statistics` gives: those of few repeats are their range, which is no 95% interval.
REPEATS = "span the repeats (up to five) or the 95% bootstrap interval (six or more)"
RATIOS = "span the ratios of individual repeats (up to three) or the 95% bootstrap interval (four or more)"
NONE = "a single repeat has none"

POINTS = f"Points are medians over repeats. Whiskers {REPEATS}; {NONE}."
BARS = f"Bars are medians over repeats. Whiskers {REPEATS}; {NONE}."
MARKS = (
    "A hollow mark means that the whiskers include 0, so no difference is shown. A half-filled mark is a single "
    "repeat, which has no whiskers and cannot tell."
)
SUMMED = "Overlapping durations add up, so this is not wall time. Bars are medians over repeats."
