"""What a configuration must know of the figures: their names, and which parameters and workload they need."""

from dataclasses import dataclass

from multicard.core.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: what it asks, how it is read, and how it is drawn.

    Attributes
    ----------
    name
        In a configuration and in the names of its files.
    order
        Place in the catalog.
    question, caption
        What it asks, and how it is read.
    limits
        What it does not show, in Markdown.
    drawing
        "module:function" that draws it, so that its name and words are known without loading matplotlib. The function
        takes the scenario's measures, or with `needs_tables` all its `ScenarioTables`; it returns the figure and a
        table of the numbers in it, or raises `NothingToShow`.
    needs_tables
        Whether the drawing needs more than the measures.
    profiled
        Whether it shows numbers of the profiled window, so that a line above it says where that window is unlike the
        measured one.
    answers
        The figure of a paper that it answers, as "A, figure 2"; None where none is known.
    axis
        Parameter that must have two or more values in the scenario; None if none must.
    workload
        The workload that it is about; None for all.
    """

    name: str
    order: int
    question: str
    caption: str
    limits: str
    drawing: str
    needs_tables: bool = False
    profiled: bool = False
    answers: str | None = None
    axis: str | None = None
    workload: str | None = None

    @property
    def needs(self) -> list[str]:
        """What a scenario must have for the figure, as a configuration states it."""
        needs = [f"vary.{self.axis}"] if self.axis else []
        return [*needs, *([f"workload {self.workload}"] if self.workload else [])]


FIGURES: Registry[Figure] = Registry("multicard.figures.catalog", "FIGURES")
