"""The catalog of figures: the name of each, what a scenario must have for it, and the module that draws it.

Configurations name figures, so the catalog is loaded with every configuration. The functions that draw are in
`multicard.figures`, each with its question and caption. They are imported only when a figure is drawn, because this
takes seconds (Matplotlib, pandas). A figure without an entry in the catalog is not drawn.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True)
class FigureEntry:
    """A figure of the catalog.

    Attributes
    ----------
    name
        Name of the figure in configurations, of its files, and of the function that draws it.
    module
        Module of `multicard.figures` that has this function.
    axis
        Parameter that must have two or more values in the scenario; None if there is no such requirement.
    workload
        Workload that the scenario must have; None for any workload.
    """

    name: str
    module: str
    axis: str | None = None
    workload: str | None = None

    @property
    def needs(self) -> str:
        """The requirements in the words of a configuration; empty if there are none.

        >>> FigureEntry("gain_layout", "gains", axis="layout", workload="vision").needs
        'vary.layout and workload vision'
        """
        axis = f"vary.{self.axis}" if self.axis else ""
        workload = f"workload {self.workload}" if self.workload else ""
        return " and ".join(filter(None, (axis, workload)))


_ENTRIES = (
    FigureEntry("iteration_time", "scaling", axis="devices"),
    FigureEntry("speedup", "scaling", axis="devices"),
    FigureEntry("image_size_scaling", "scaling", axis="image_size", workload="vision"),
    FigureEntry("step_breakdown", "steps"),
    FigureEntry("step_times", "steps"),
    FigureEntry("accuracy", "steps", workload="vision"),
    FigureEntry("loss", "steps"),
    FigureEntry("time_shares", "traces"),
    FigureEntry("cuda_api", "traces"),
    FigureEntry("kernel_classes", "traces"),
    FigureEntry("memory_transfers", "traces"),
    FigureEntry("device_time", "traces"),
    FigureEntry("collectives", "traces"),
    FigureEntry("utilization", "steps"),
    FigureEntry("gain_precision", "gains", axis="precision"),
    FigureEntry("gain_pin_memory", "gains", axis="pin_memory", workload="vision"),
    FigureEntry("gain_loader", "gains", axis="loader", workload="vision"),
    FigureEntry("gain_layout", "gains", axis="layout", workload="vision"),
    FigureEntry("gain_binding", "gains", axis="binding"),
    FigureEntry("gain_preset", "gains", axis="preset", workload="vision"),
    FigureEntry("gain_profiler", "gains", axis="profiler"),
    FigureEntry("ablation", "gains", axis="ablate"),
    FigureEntry("profiler_overhead", "gains"),
    FigureEntry("techniques", "costs", axis="technique", workload="llm"),
    FigureEntry("tradeoff", "costs"),
    FigureEntry("energy", "costs"),
    FigureEntry("memory", "costs"),
)

# Every figure by its name, in the order of the catalog.
FIGURES: dict[str, FigureEntry] = {entry.name: entry for entry in _ENTRIES}

# For pydantic the type is the choice of all names. A type checker does not accept a `Literal` that is made from data.
if TYPE_CHECKING:
    FigureName = str
else:
    FigureName = Literal[tuple(FIGURES)]
