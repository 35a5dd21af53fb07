"""Drawings of the catalog: functions that draw a figure, each with the question that it answers and its caption.

The decorator `figure` makes a `Drawing` of a function. This is the half of the catalog that takes seconds to import
(Matplotlib, pandas). The other half, `multicard.config.figures`, lists all figures. It says what a scenario must have
for each, and which module has its drawing, and it is loaded with every configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import pandas as pd
from matplotlib.figure import Figure

from multicard.config.figures import FIGURES
from multicard.results.results import Results

# Sentences that several captions share. `multicard.stats.pool` computes the intervals.
REPEATS = "are 95% confidence intervals from the variance pooled over all configurations (none for a single repeat)"
RATIOS = "are 95% confidence intervals of ratios, paired by repeat if both sides have it (none for two single repeats)"
POINTS = (
    f"Marks are means over repeats, small dots are single repeats. Whiskers {REPEATS}; an arrow means that a whisker "
    "continues off-scale, to the stated value."
)
BARS = f"Bars are means over repeats, small dots are single repeats. Whiskers {REPEATS}."
HOLLOW = "A hollow mark is not significant at the 5% level, corrected by Holm's method for all points of the figure."
SUMMED = "Overlapping durations add up, so this is not wall time. Bars are means over repeats."
# What many captions say, once for a page of many figures.
HOW_TO_READ = (
    "Marks and bars are means over repeats (for ratios, geometric means, paired by repeat); small dots are single "
    "repeats. Whiskers are 95% confidence intervals from the variance pooled over all configurations (none for a "
    "single repeat); an arrow means that a whisker continues off-scale. A hollow mark of a gain or of overhead is not "
    "significant at the 5% level, corrected for all points of the figure."
)

Draw = Callable[[Results], tuple[Figure, pd.DataFrame]]


@dataclass(frozen=True)
class Drawing:
    """How a figure of the catalog is drawn and explained; made by the decorator `figure`.

    Attributes
    ----------
    draw
        Function that draws the figure of a scenario. It returns the figure and a table of the numbers in it, which
        becomes its CSV file, or raises `NothingToShow`.
    question
        The question that the figure answers.
    caption
        How to read the figure, and what it does not show, as plain text.
    brief
        What distinguishes this figure from others, in a third of the caption's words: for pages of many figures, which
        say once how all are read (`HOW_TO_READ`).
    profiled
        True if the figure shows the profiled window. Notes above it then include doubts about that window.
    paper_figure
        Figure of a paper that answers the same question, such as "A, figure 2"; None if there is none. A is a key of
        `multicard.papers.claim.PAPERS`.
    """

    draw: Draw
    question: str
    caption: str
    brief: str
    profiled: bool
    paper_figure: str | None


def figure(
    question: str, caption: str, *, brief: str = "", profiled: bool = False, paper_figure: str | None = None
) -> Callable[[Draw], Drawing]:
    """Return a decorator that makes a `Drawing` from a function that draws; the arguments are fields of `Drawing`.

    `brief`: by default the caption.
    """

    def make_drawing(draw: Draw) -> Drawing:
        return Drawing(draw, question, caption, brief or caption, profiled, paper_figure)

    return make_drawing


def load_drawing(name: str) -> Drawing:
    """Import the module of a figure of `FIGURES`, and return its drawing. `name`: key of `FIGURES`."""
    module = import_module(f"multicard.figures.{FIGURES[name].module}")
    drawing: Drawing = getattr(module, name)
    return drawing
