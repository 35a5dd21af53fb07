"""What a result costs besides time: energy, and the overhead of profiling."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.comparisons import overheads, varied
from multicard.analysis.scaling import over_repeats
from multicard.core.units import JOULES, unit_for
from multicard.experiment.workload import workload_of
from multicard.figures.bars import group_axis, height_of, limits, whiskers
from multicard.figures.scaling import axis_of_devices, lines_by_devices
from multicard.figures.series import configuration_names, labels
from multicard.figures.style import WEAK, WIDTH_IN, NothingToShow, explain_marks, legend_below


def energy(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Energy of the GPUs per sample, of LLM runs per token, over devices."""
    counted = workload_of(measures).unit
    value, of = counted.energy, counted.name
    if measures[value].isna().all():
        why = " (a CPU has no meter)" if set(measures["device"]) == {"cpu"} else ": the GPUs were not metered"
        raise NothingToShow(f"no energy was recorded{why}")
    data = over_repeats(measures, [value])
    data.insert(0, "series", labels(data, varied(measures, besides=("devices", "repeat"))))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.2))
    scale, unit = unit_for(data[value], JOULES)
    lines_by_devices(axes, data, value, scale)
    axes.set(title=f"Energy per {of}, all GPUs", ylabel=f"Energy per {of} ({unit})")
    axis_of_devices(axes, data)
    legend_below(figure, axes)
    return figure, data


def profiler_overhead(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """How much longer a step is while the profiler records; the marker says whether that is a difference."""
    data = overheads(measures)
    data.insert(0, "configuration", configuration_names(measures, data))
    if data.empty:
        raise NothingToShow("no profiled steps were recorded")
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.0 + height_of(len(data), 0.26)))
    axes.axvline(0, color="0.3", linewidth=1.0, zorder=1)
    below, above = whiskers(data, "profiler_overhead", 100.0)
    for verdict, rows in data.groupby("verdict"):
        axes.errorbar(
            100 * rows["profiler_overhead"].astype(float),
            rows.index,
            xerr=[below[rows.index], above[rows.index]],
            linestyle="none",
            marker="o",
            markersize=5,
            capsize=3,
            color="#0173b2",
            label="_",
            **WEAK.get(verdict, {}),
        )
    explain_marks(axes, set(data["verdict"]))
    names = data["configuration"].tolist()
    left, right = limits(100 * data["profiler_overhead"], *axes.get_xlim())
    group_axis(axes, names, horizontal=True)
    axes.set(xlim=(min(left, 0), right), xlabel="Profiling overhead (%)", title="Profiling overhead")
    legend_below(figure, axes)
    return figure, data
