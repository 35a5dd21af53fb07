"""The catalog of figures. The decorator `figure` puts a drawing function into it; `experiment.figures` has the names.

The function takes the tables of a scenario, and returns the figure and a table of the numbers in it, which becomes its
CSV, or raises `NothingToShow`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.scenario_tables import ScenarioTables
from multicard.experiment.figures import FIGURES

FAMILIES = ("scaling", "steps", "traces", "gains", "costs")  # modules that have figures

# Sentences that several captions share. The bounds are those of `multicard.stats.pool`.
REPEATS = "are 95% confidence intervals, by the scatter of all configurations of the figure; a single repeat has none"
RATIOS = "are 95% confidence intervals, of ratios paired by repeat if both sides have it; two single repeats have none"
POINTS = (
    f"Marks are means over repeats, small dots single repeats. Whiskers {REPEATS}; an arrow marks one that goes on."
)
BARS = f"Bars are means over repeats, small dots single repeats. Whiskers {REPEATS}."
HOLLOW = "A hollow mark is not significant at the 5% level, corrected by Holm's method for all points of the figure."
SUMMED = "Overlapping durations add up, so this is not wall time. Bars are means over repeats."

PAPER = "Lawenda et al., arXiv 2503.15252", "https://arxiv.org/abs/2503.15252"  # paper A of `Entry.answers`

Draw = Callable[[ScenarioTables], tuple[Figure, pd.DataFrame]]


@dataclass(frozen=True)
class Entry:
    """A figure of the catalog.

    Attributes
    ----------
    caption
        How it is read and what it does not show, as plain text.
    profiled
        Whether it shows the profiled window: lines above it say where that is unlike the measured one.
    answers
        The figure of a paper that asks the same, as "A, figure 2".
    """

    name: str
    question: str
    caption: str
    draw: Draw
    profiled: bool
    answers: str | None

    @property
    def needs(self) -> str:
        """What a scenario must have for it."""
        return str(FIGURES[self.name])


_entries: dict[str, Entry] = {}


def figure(
    question: str, caption: str, *, name: str = "", profiled: bool = False, answers: str | None = None
) -> Callable[[Draw], Draw]:
    """Put a function into the catalog, by its own name or another."""

    def put(draw: Draw) -> Draw:
        own = name or draw.__name__
        _entries[own] = Entry(own, question, caption, draw, profiled, answers)
        return draw

    return put


@cache
def catalog() -> dict[str, Entry]:
    """All figures by name, in their order."""
    for family in FAMILIES:
        import_module(f"multicard.figures.{family}")
    return {name: _entries[name] for name in FIGURES}
