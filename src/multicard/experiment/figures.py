"""The figures that a configuration can ask for, and what a scenario must have for each.

`multicard.figures` draws them. It takes seconds to load, which reading a configuration must not, so this list is
separate.
"""

from dataclasses import dataclass
from typing import Literal

FigureName = Literal[
    "iteration_time",
    "speedup",
    "image_size_scaling",
    "step_breakdown",
    "step_times",
    "accuracy",
    "loss",
    "time_shares",
    "cuda_api",
    "kernel_classes",
    "memory_transfers",
    "device_time",
    "collectives",
    "utilization",
    "gain_precision",
    "gain_pin_memory",
    "gain_loader",
    "gain_layout",
    "gain_binding",
    "gain_preset",
    "gain_profiler",
    "ablation",
    "profiler_overhead",
    "techniques",
    "tradeoff",
    "energy",
    "memory",
]


@dataclass(frozen=True)
class Needs:
    """Requirements of a figure on a scenario; None requires nothing."""

    axis: str | None = None  # parameter with two or more values
    workload: str | None = None

    def __str__(self) -> str:
        """Return the requirements in the words of a configuration; empty where there are none.

        >>> str(Needs("layout", "vision"))
        'vary.layout and workload vision'
        """
        axis = f"vary.{self.axis}" if self.axis else ""
        workload = f"workload {self.workload}" if self.workload else ""
        return " and ".join(filter(None, (axis, workload)))


# Requirements of every figure, in the order of the catalog.
FIGURES: dict[str, Needs] = {
    "iteration_time": Needs("devices"),
    "speedup": Needs("devices"),
    "image_size_scaling": Needs("image_size", "vision"),
    "step_breakdown": Needs(),
    "step_times": Needs(),
    "accuracy": Needs(workload="vision"),
    "loss": Needs(),
    "time_shares": Needs(),
    "cuda_api": Needs(),
    "kernel_classes": Needs(),
    "memory_transfers": Needs(),
    "device_time": Needs(),
    "collectives": Needs(),
    "utilization": Needs(),
    "gain_precision": Needs("precision"),
    "gain_pin_memory": Needs("pin_memory", "vision"),
    "gain_loader": Needs("loader", "vision"),
    "gain_layout": Needs("layout", "vision"),
    "gain_binding": Needs("binding"),
    "gain_preset": Needs("preset", "vision"),
    "gain_profiler": Needs("profiler"),
    "ablation": Needs("ablate"),
    "profiler_overhead": Needs(),
    "techniques": Needs("technique", "llm"),
    "tradeoff": Needs(),
    "energy": Needs(),
    "memory": Needs(),
}
