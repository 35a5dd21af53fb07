"""The catalog of figures: the name of each, what a scenario must have for it, and the module that draws it.

The catalog has two halves, because they are needed at different times:

- Here is what reading a configuration needs: its figures are checked by name and requirements. Most commands read one,
  so this half must import neither Matplotlib nor pandas, which take seconds, nor a module that draws.
- A module of `multicard.figures` has the function that draws a figure. The decorator `figure` of
  `multicard.figures.catalog` gives it the question and the caption. It is imported only when the figure is drawn or
  shown.

Only the name is in both halves. A new figure is a function there and an entry in `_ENTRIES` here; a test fails if there
is only one of them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from multicard.core.text import listed
from multicard.programs import PROGRAMS


@dataclass(frozen=True)
class FigureEntry:
    """A figure of the catalog: where it is drawn, and what a scenario must have for it.

    Attributes
    ----------
    name
        Name of the figure in configurations, of its files, and of the function that draws it.
    module
        Module of `multicard.figures` that has this function.
    axis
        Parameter that must have two or more values in the scenario; None if there is no such requirement.
    measure
        Measure that the scenario's program must have; None if every program has what the figure shows.
    """

    name: str
    module: str
    axis: str | None = None
    measure: str | None = None

    @property
    def workloads(self) -> list[str]:
        """Names of the programs that have the parameter and the measure that the figure needs.

        >>> FigureEntry("gain_layout", "gains", axis="layout").workloads
        ['vision']
        """
        programs = list(PROGRAMS.values())
        if self.axis is not None:
            programs = [program for program in programs if self.axis in program.parameters.model_fields]
        if self.measure is not None:
            programs = [program for program in programs if self.measure in program.measures.definitions]
        return [program.name for program in programs]

    @property
    def needs(self) -> str:
        """The requirements in the words of a configuration; empty if there are none.

        >>> FigureEntry("gain_layout", "gains", axis="layout").needs
        'vary.layout and workload vision'
        >>> FigureEntry("speedup", "scaling", axis="devices").needs
        'vary.devices'
        """
        needs = [f"vary.{self.axis}"] if self.axis else []
        if len(self.workloads) < len(PROGRAMS):
            needs.append(f"workload {listed(self.workloads, 'or')}")
        return " and ".join(needs)


_ENTRIES = (
    FigureEntry("iteration_time", "scaling", axis="devices"),
    FigureEntry("speedup", "scaling", axis="devices"),
    FigureEntry("throughput_per_device", "scaling", axis="devices"),
    FigureEntry("image_size_scaling", "scaling", axis="image_size"),
    FigureEntry("step_breakdown", "steps"),
    FigureEntry("step_times", "steps"),
    FigureEntry("accuracy", "steps", measure="test_accuracy"),
    FigureEntry("loss", "steps"),
    FigureEntry("time_shares", "traces"),
    FigureEntry("cuda_api", "traces"),
    FigureEntry("kernel_classes", "traces"),
    FigureEntry("memory_transfers", "traces"),
    FigureEntry("device_time", "traces"),
    FigureEntry("collectives", "traces"),
    FigureEntry("utilization", "steps"),
    FigureEntry("gain_precision", "gains", axis="precision"),
    FigureEntry("gain_pin_memory", "gains", axis="pin_memory"),
    FigureEntry("gain_loader", "gains", axis="loader"),
    FigureEntry("gain_layout", "gains", axis="layout"),
    FigureEntry("gain_binding", "gains", axis="binding"),
    FigureEntry("gain_preset", "gains", axis="preset"),
    FigureEntry("gain_profiler", "gains", axis="profiler"),
    FigureEntry("ablation", "gains", axis="ablate"),
    FigureEntry("profiler_overhead", "gains"),
    FigureEntry("techniques", "costs", axis="technique"),
    FigureEntry("tradeoff", "tradeoff"),
    FigureEntry("energy", "costs"),
    FigureEntry("memory", "costs"),
)

# Every figure by its name, in the order of the catalog.
FIGURES: dict[str, FigureEntry] = {entry.name: entry for entry in _ENTRIES}

# Width of a figure in print: of one column of a journal with two, or of both, which is the text's width on a page.
WidthName = Literal["column", "page"]

# For pydantic the type is the choice of all names. A type checker does not accept a `Literal` that is made from data.
if TYPE_CHECKING:
    FigureName = str
else:
    FigureName = Literal[tuple(FIGURES)]
