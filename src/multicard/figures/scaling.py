"""Figures over the number of devices: iteration time and throughput, speed-up and efficiency, image sizes."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.runs.notices import UNCOUNTED
from multicard.analysis.scaling.speedup import over_repeats, throughput_of
from multicard.core.units import MINUTES, SECONDS, unit_for
from multicard.figures.bars import Colour, whiskers
from multicard.figures.series import device_axis, labels, only_count, unit
from multicard.figures.style import (
    DASHES,
    MARKERS,
    WIDTH_IN,
    NothingToShow,
    colours,
    legend_below,
    ordered_colours,
    say,
)

# Title and label of each measure of speed.
THROUGHPUT = {
    "throughput_samples_per_s": ("Throughput", "Distinct samples per second"),
    "tokens_per_s": ("Throughput, without padding", "Tokens per second"),
    "steps_per_s": ("Throughput in steps", "Steps per second"),
}

# No series is drawn as a thin line without marks.
IDEAL = {"color": "0.3", "linestyle": "-", "linewidth": 0.7, "label": "ideal", "zorder": 1}

OFFSET = 0.035  # between neighbouring series, in devices
LINEAR_TO = 8  # devices, beyond which their axis is logarithmic


def iteration_time(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and throughput over devices: in distinct samples, in tokens of LLM runs, else in steps."""
    rate = throughput_of(measures)
    title, label = THROUGHPUT[rate]
    data = _series(measures, ["iteration_time_s", rate])
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    scale, seconds = unit_for(data["iteration_time_s"], SECONDS)
    lines_by_devices(left, data, "iteration_time_s", scale)
    left.set(title="Iteration time", ylabel=f"Time per step ({seconds})")
    lines_by_devices(right, data, rate)
    right.set(title=title, ylabel=label)
    for axes in (left, right):
        axis_of_devices(axes, data)
    legend_below(figure, left, right)
    return figure, data


def speedup(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Speed-up and efficiency over devices, with ideal scaling."""
    only = only_count(measures)
    if only:
        raise NothingToShow(f"{only}: neither speed-up nor efficiency")
    if throughput_of(measures) == "steps_per_s":
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step for speed-up and efficiency")
    data = _series(measures, ["speedup", "efficiency"])
    devices = sorted(data["devices"].unique())
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    left.plot(devices, devices, **IDEAL)
    lines_by_devices(left, data, "speedup")
    left.set(title="Speed-up", ylabel="Speed-up over one device")
    right.plot(devices, [1.0] * len(devices), **IDEAL)
    lines_by_devices(right, data, "efficiency")
    right.set(title="Efficiency", ylabel="Speed-up per device")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        axis_of_devices(axes, data)
    legend_below(figure, left, right)
    return figure, data


def image_size_scaling(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Time of a pass over the data and efficiency over devices, a line per image size.

    Other varied parameters, such as the precision, have a row of panels per combination.
    """
    others = varied(measures, besides=("image_size", "devices", "repeat"))
    data = over_repeats(measures, ["estimated_epoch_time_s", "efficiency"]).sort_values(
        ["image_size", "devices"], kind="stable", ignore_index=True
    )
    data.insert(0, "series", [unit("image_size", size) for size in data["image_size"]])
    data.insert(1, "panel", labels(data, others) if others else "")
    panels = list(dict.fromkeys(_panels(measures, others)))
    palette = dict(zip(dict.fromkeys(data["series"]), ordered_colours(data["series"].nunique()), strict=True))
    only = only_count(measures)

    figure, rows = plt.subplots(len(panels), 2, figsize=(WIDTH_IN, 0.7 + 2.4 * len(panels)), squeeze=False)
    for (left, right), name in zip(rows, panels, strict=True):
        own = data[data["panel"] == name]
        mine = [palette[series] for series in dict.fromkeys(own["series"])]
        scale, seconds = unit_for(own["estimated_epoch_time_s"], MINUTES)
        lines_by_devices(left, own, "estimated_epoch_time_s", scale, mine)
        left.set(title=f"{name}: time" if name else "Time", ylabel=f"Time per pass ({seconds})")
        right.set(title=f"{name}: efficiency" if name else "Efficiency", ylabel="Speed-up per device")
        if only:
            say(right, f"{only}:\nno efficiency")
        elif own["efficiency"].isna().all():
            say(right, "no run on one device to compare with:\nno efficiency")
        else:
            lines_by_devices(right, own, "efficiency", palette=mine)
            right.axhline(1.0, **IDEAL)
            right.yaxis.set_major_formatter(PercentFormatter(1.0))
        for axes in (left, right):
            axis_of_devices(axes, own)
    legend_below(figure, *rows.flat)
    return figure, data


def _panels(measures: pd.DataFrame, others: list[str]) -> list[str]:
    """Names of the panels in the order of the runs."""
    completed = measures[measures["outcome"] == "completed"]
    return labels(completed, others) if others else [""]


def _series(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    data = over_repeats(measures, values)
    data.insert(0, "series", labels(data, varied(measures, besides=("devices", "repeat"))))
    return data


def lines_by_devices(
    axes: Axes, data: pd.DataFrame, value: str, scale: float = 1.0, palette: Sequence[Colour] | None = None
) -> None:
    """Draw one line per `series`; whiskers show the interval over repeats. A panel without values says so."""
    if data[value].isna().all():
        say(axes, "not recorded")
        return
    names = list(dict.fromkeys(data["series"]))
    for index, (name, colour) in enumerate(zip(names, palette or colours(len(names)), strict=True)):
        rows = data[(data["series"] == name) & data[value].notna()].sort_values("devices")
        if rows.empty:
            continue
        # Neighbours are offset, so that markers of equal height do not cover each other.
        offset = OFFSET * (index - (len(names) - 1) / 2)
        drawn = axes.errorbar(
            rows["devices"] + offset,
            rows[value].astype(float) * scale,
            yerr=whiskers(rows, value, scale),
            label=name,
            color=colour,
            marker=MARKERS[index % len(MARKERS)],
            linestyle=DASHES[index % len(DASHES)],
            capsize=3,
            markersize=5,
            markerfacecolor="white" if index % 2 else colour,
            clip_on=False,  # markers at zero are not cut off
        )
        for artist in drawn.get_children():
            artist.set_in_layout(False)
        for artist in (*drawn.lines[1], *drawn.lines[2]):
            artist.set_clip_on(True)


def axis_of_devices(axes: Axes, data: pd.DataFrame) -> None:
    """Label the axis of devices with their kind, and let the other begin at zero; an empty panel stays as it is."""
    if not axes.has_data():
        return
    ticks_of_devices(axes, data)
    axes.margins(x=0.12, y=0)
    # The whiskers of two repeats may be so long that nothing else could be seen.
    caps = {cap for container in axes.containers for cap in container.lines[1]}
    highest = max(np.nanmax(line.get_ydata()) for line in axes.get_lines() if line not in caps)
    axes.set_ylim(0, 1.07 * min(axes.get_ylim()[1], 2 * highest))


def ticks_of_devices(axes: Axes, data: pd.DataFrame) -> None:
    """Label the axis of devices with their kind."""
    devices = sorted(int(n) for n in data["devices"].unique())
    if len(devices) > 1 and devices[-1] > LINEAR_TO:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(devices))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    shared = ", sharing one batch" if "scaling" in data and set(data["scaling"]) == {"strong"} else ""
    axes.set_xlabel(f"{device_axis(data)}{shared}")
