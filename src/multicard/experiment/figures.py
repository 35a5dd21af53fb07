"""The figures that a configuration can ask for, and what a scenario must have for each.

`multicard.figures` draws them. It takes seconds to load, which reading a configuration must not, so this list is apart.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What a scenario must have: a parameter with two or more values (`axis`), a workload; None for any."""

    axis: str | None = None
    workload: str | None = None

    def __str__(self) -> str:
        """The needs as a configuration states them."""
        parts = (self.axis and f"vary.{self.axis}", self.workload and f"workload {self.workload}")
        return " and ".join(filter(None, parts))


# In the order of the catalog.
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
