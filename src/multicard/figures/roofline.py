"""Operations per second over operations per byte, under what a device computes and its memory moves at most."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from multicard.analysis.comparisons import configurations
from multicard.core.text import counted
from multicard.core.units import BYTES_PER_S, OPERATIONS_PER_S, with_unit
from multicard.experiment.config import parameters_in
from multicard.figures.bars import whiskers
from multicard.figures.series import configuration_names
from multicard.figures.style import DASHES, MARKERS, WIDTH_IN, NothingToShow, colours, legend_below

INTENSITY, PEAK = "operational_intensity_flop_per_byte", "peak_flop_per_s"
BANDWIDTH, RATE = "memory_bandwidth_bytes_per_s", "hardware_flop_per_s"
MEASURED = "multicard machine measures, on CPUs with 1 and with all usable threads"
MISSING = {
    INTENSITY: "no run has the bytes of a step counted: those with torch.compile have not, scripts with "
    "`count_operations: true` only",
    RATE: "the operations of these runs are not known",
    BANDWIDTH: f"the memory bandwidth of these devices is not known, which {MEASURED}",
    PEAK: f"the peak of these devices is not known, which {MEASURED}; or runs were faster than it",
}
MARGIN = 4.0  # how many times less, or more, than what is drawn the axes reach
# Parameters that a roof depends on. Nodes of a kind differ a little, and so do their limits: theirs is the median.
MEMORY_OF = ("device", "threads")
PEAK_OF = (*MEMORY_OF, "precision", "tf32", "mfu_of")


def roofline(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """A point per configuration, and a roof for each peak with a memory bandwidth that their devices have."""
    given = ["hardware_flop_per_step", "mfu_of", *MISSING]  # which tables of earlier versions lack
    measures = measures.reindex(columns=list(dict.fromkeys((*measures, *given))))
    measures[RATE] = measures["hardware_flop_per_step"].astype(float) / measures["iteration_time_s"].astype(float)
    data = configurations(measures, [*MISSING]).astype(dict.fromkeys(MISSING, float))
    for column, reason in MISSING.items():
        data = data[data[column].notna()].reset_index(drop=True)
        if data.empty:
            raise NothingToShow(reason)
    by = [name for name in parameters_in(measures) if name != "repeat"]
    completed = len(measures[measures["outcome"] == "completed"].drop_duplicates(by))
    data.insert(0, "configuration", configuration_names(measures, data))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 4.2))
    _draw_roofs(axes, _with_roofs(data, measures, by))
    if completed > len(data):
        left_out = counted(completed - len(data), "configuration")
        axes.set_title(f"{left_out} without a point: bytes, operations or limits are not known", fontsize="small")
    errors = zip(*whiskers(data, RATE, 1.0), strict=True)
    for (_, row), error, colour, marker in zip(data.iterrows(), errors, colours(len(data)), cycle(MARKERS)):
        axes.errorbar(
            row[INTENSITY], row[RATE], np.reshape(error, (2, 1)), linestyle="none", marker=marker, capsize=3,
            color=colour, markeredgecolor="0.2", markeredgewidth=0.5, ecolor="0.2", label=row["configuration"],
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="Operational intensity (FLOP per byte)", ylabel="Rate per device")
    axes.yaxis.set_major_formatter(EngFormatter("FLOP/s"))
    axes.xaxis.set_major_formatter(EngFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    legend_below(figure, axes)
    return figure, data


def _with_roofs(data: pd.DataFrame, measures: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Configurations with the peak and bandwidth of their roof, and `mfu_of`."""
    whose = measures.dropna(subset=["mfu_of"]).drop_duplicates(by)[[*by, "mfu_of"]]
    data = data.merge(whose, on=by, how="left")
    kinds = data.assign(threads=data["threads"].where(data["device"] == "cpu", 1)).astype(str)
    for value, names in ((PEAK, PEAK_OF), (BANDWIDTH, MEMORY_OF)):
        alike = [kinds[name] for name in names if name in kinds]
        data[value] = data.groupby(alike)[value].transform("median")
    return data


def _draw_roofs(axes: Axes, data: pd.DataFrame) -> None:
    """Lines of min(peak, bandwidth · intensity), each named where it is level and once where it rises."""
    roofs = data[[PEAK, BANDWIDTH, "mfu_of"]].drop_duplicates().sort_values(PEAK, ascending=False)
    ridge = roofs[PEAK] / roofs[BANDWIDTH]
    left = min(data[INTENSITY].min(), ridge.min()) / MARGIN
    right = max(data[INTENSITY].max(), ridge.max()) * MARGIN**2  # where a line is level it is named
    for (peak, bandwidth, whose), knee, dashes in zip(roofs.itertuples(index=False), ridge, cycle(DASHES)):
        axes.plot([left, knee, right], [bandwidth * left, peak, peak], dashes, color="0.3", linewidth=1.2, zorder=1)
        own = data[(data[PEAK] == peak) & (data[BANDWIDTH] == bandwidth) & (data["mfu_of"] == whose)]
        precision = ", ".join(own["precision"].unique()) + ": " if "precision" in own else ""
        name = f"{precision}{with_unit(peak, OPERATIONS_PER_S)}, {whose} peak"
        axes.annotate(name, (right, peak), (-3, 3), textcoords="offset points", ha="right", fontsize="small")
    for bandwidth in roofs[BANDWIDTH].unique():
        name, x = f"memory: {with_unit(bandwidth, BYTES_PER_S)}, measured", ridge[roofs[BANDWIDTH] == bandwidth].min()
        axes.annotate(name, (x, bandwidth * x), (-6, 3), textcoords="offset points", ha="right", fontsize="small")
    low = min(data[RATE].min(), roofs[BANDWIDTH].min() * left)
    axes.set(xlim=(left, right), ylim=(low / MARGIN, roofs[PEAK].max() * MARGIN))
