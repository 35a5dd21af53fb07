"""Operations per second over operations per byte, under what a device computes and its memory moves at most."""

from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from multicard.analysis.comparisons import configurations
from multicard.core.units import BYTES_PER_S, OPERATIONS_PER_S, with_unit
from multicard.figures.bars import whiskers
from multicard.figures.series import configuration_names
from multicard.figures.style import DASHES, MARKERS, WIDTH_IN, NothingToShow, colours, legend_below

INTENSITY, PEAK = "operational_intensity_flop_per_byte", "peak_flop_per_s"
BANDWIDTH, RATE = "memory_bandwidth_bytes_per_s", "hardware_flop_per_s"
MISSING = {
    INTENSITY: "no run has the bytes of a step counted, as those with torch.compile have not",
    RATE: "the operations of these runs are not known",
    BANDWIDTH: "the memory bandwidth of these devices was not measured, which multicard machine does",
    PEAK: "the peak of these devices is not known, which multicard machine measures",
}
MARGIN = 4.0  # how many times less, or more, than what is drawn the axes reach


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
    data.insert(0, "configuration", configuration_names(measures, data))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 4.2))
    _draw_roofs(axes, data, " or ".join(measures["mfu_of"].dropna().unique()))
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


def _draw_roofs(axes: Axes, data: pd.DataFrame, whose: str) -> None:
    """Lines of min(peak, bandwidth · intensity), each named where it is level and once where it rises."""
    roofs = data[[PEAK, BANDWIDTH]].drop_duplicates().sort_values(PEAK, ascending=False)
    ridge = roofs[PEAK] / roofs[BANDWIDTH]
    left = min(data[INTENSITY].min(), ridge.min()) / MARGIN
    right = max(data[INTENSITY].max(), ridge.max()) * MARGIN**2  # where a line is level it is named
    for (peak, bandwidth), knee, dashes in zip(roofs.itertuples(index=False), ridge, cycle(DASHES)):
        axes.plot([left, knee, right], [bandwidth * left, peak, peak], dashes, color="0.3", linewidth=1.2, zorder=1)
        own = data[(data[PEAK] == peak) & (data[BANDWIDTH] == bandwidth)]
        precision = ", ".join(own["precision"].unique()) + ": " if "precision" in own else ""
        name = f"{precision}{with_unit(peak, OPERATIONS_PER_S)}, {whose} peak"
        axes.annotate(name, (right, peak), (-3, 3), textcoords="offset points", ha="right", fontsize="small")
    for bandwidth in roofs[BANDWIDTH].unique():
        name, x = f"memory: {with_unit(bandwidth, BYTES_PER_S)}, measured", ridge[roofs[BANDWIDTH] == bandwidth].min()
        axes.annotate(name, (x, bandwidth * x), (-6, 3), textcoords="offset points", ha="right", fontsize="small")
    low = min(data[RATE].min(), roofs[BANDWIDTH].min() * left)
    axes.set(xlim=(left, right), ylim=(low / MARGIN, roofs[PEAK].max() * MARGIN))
