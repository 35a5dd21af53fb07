"""Drawings of the catalog: functions that draw a figure, each with the question that it answers and its caption.

The decorator `figure` makes a `Drawing` of a function. The list of all figures is `experiment.figures.FIGURES`, which
says what a scenario must have for each, and which module has its drawing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import pandas as pd
from matplotlib.figure import Figure

from multicard.experiment.figures import FIGURES
from multicard.results.results import Results

# Sentences that several captions share. The bounds are those of `multicard.stats.pool`.
REPEATS = "are 95% confidence intervals, by the scatter of all configurations of the figure; a single repeat has none"
RATIOS = "are 95% confidence intervals, of ratios paired by repeat if both sides have it; two single repeats have none"
POINTS = (
    f"Marks are means over repeats, small dots single repeats. Whiskers {REPEATS}; an arrow marks one that goes on."
)
BARS = f"Bars are means over repeats, small dots single repeats. Whiskers {REPEATS}."
HOLLOW = "A hollow mark is not significant at the 5% level, corrected by Holm's method for all points of the figure."
SUMMED = "Overlapping durations add up, so this is not wall time. Bars are means over repeats."

# Paper A of `Drawing.paper_figure`.
PAPER = "Lawenda et al., arXiv 2503.15252", "https://arxiv.org/abs/2503.15252"

Draw = Callable[[Results], tuple[Figure, pd.DataFrame]]


@dataclass(frozen=True)
class Drawing:
    """How a figure of the catalog is drawn and explained; made by the decorator `figure`.

    Attributes
    ----------
    draw
        Draws the figure of a scenario. Returns it with a table of the numbers in it, which becomes its CSV, or raises
        `NothingToShow`.
    question
        The question that the figure answers.
    caption
        How to read the figure, and what it does not show, as plain text.
    profiled
        True if it shows the profiled window: lines above the figure state how this differs from the measured one.
    paper_figure
        Figure of a paper that answers the same question, such as "A, figure 2", if any.
    """

    draw: Draw
    question: str
    caption: str
    profiled: bool
    paper_figure: str | None


def figure(
    question: str, caption: str, *, profiled: bool = False, paper_figure: str | None = None
) -> Callable[[Draw], Drawing]:
    """Return a decorator that makes a function into a drawing; see `Drawing` for the arguments."""

    def make_drawing(draw: Draw) -> Drawing:
        return Drawing(draw, question, caption, profiled, paper_figure)

    return make_drawing


def load_drawing(name: str) -> Drawing:
    """Return the drawing of a figure of `FIGURES`; imports its module."""
    module = import_module(f"multicard.figures.{FIGURES[name].module}")
    drawing: Drawing = getattr(module, name)
    return drawing
