"""What a configuration must know of the figures: their names, and which parameters and workload they need."""

from dataclasses import dataclass

from multicard.core.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure: what it asks, how it is read, and how it is drawn."""

    name: str  # in a configuration and in the names of its files
    order: int  # place in the catalog
    question: str
    caption: str  # how it is read
    limits: str  # what it does not show, in Markdown
    # "module:function" that draws it, so that its name and words are known without loading matplotlib. The function
    # takes the scenario's measures, or with `needs_tables` all its `ScenarioTables`; it returns the figure and a table
    # of the numbers in it, or raises `NothingToShow`.
    drawing: str
    needs_tables: bool = False
    profiled: bool = False  # it shows the profiled window: a line above it says where that is unlike the measured one
    answers: str | None = None  # the figure of a paper that it answers, as "A, figure 2"
    axis: str | None = None  # parameter that must have two or more values in the scenario
    workload: str | None = None  # the one that it is about; None for all

    @property
    def needs(self) -> list[str]:
        """What a scenario must have for the figure, as a configuration states it."""
        needs = [f"vary.{self.axis}"] if self.axis else []
        return [*needs, *([f"workload {self.workload}"] if self.workload else [])]


FIGURES: Registry[Figure] = Registry("multicard.figures.catalog", "FIGURES")
