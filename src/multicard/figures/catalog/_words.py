"""Sentences that several captions share."""

# The bounds that `analysis.pooling` gives.
REPEATS = "are 95% confidence intervals, by the scatter of all configurations of the figure"
RATIOS = "are 95% confidence intervals, of ratios paired by repeat, and cut where they leave the panel"
NONE = "a single repeat has none"

DOTS = "Small dots are single repeats, and an arrowhead marks a whisker that the panel cuts."
POINTS = f"Marks are means over repeats. Whiskers {REPEATS}; {NONE}. {DOTS}"
BARS = f"Bars are means over repeats, small dots single repeats. Whiskers {REPEATS}; {NONE}."
MARKS = (
    "A hollow mark is inconclusive: not significant at the 5% level, corrected by Holm's method for all points of the "
    "figure. A half-filled mark is a single repeat, which has no whiskers and cannot tell."
)
SUMMED = "Overlapping durations add up, so this is not wall time. Bars are means over repeats."
