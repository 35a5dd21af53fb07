"""Figures against the number of devices: iteration time and throughput, speed-up and efficiency."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter, ScalarFormatter

from multicard.analysis.scaling import over_repeats
from multicard.figures.bars import Colour, whiskers
from multicard.figures.series import device_axis, is_llm, labels, only_count, varied
from multicard.figures.style import (
    DASHES,
    MARKERS,
    SECONDS,
    WIDTH_IN,
    NothingToShow,
    colours,
    legend_below,
    say,
    unit_for,
)

ASIDE = 0.035  # shift between neighbouring series, in devices


def iteration_time(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and throughput against devices: of distinct samples, or of tokens where texts are learned."""
    rate, title, unit = (
        ("tokens_per_s", "Throughput, without padding", "Tokens per second")
        if is_llm(measures)
        else ("throughput_samples_per_s", "Throughput", "Distinct samples per second")
    )
    data = _series(measures, ["iteration_time_s", rate])
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    scale, seconds = unit_for(data["iteration_time_s"], SECONDS)
    lines_by_devices(left, data, "iteration_time_s", scale)
    left.set(title="Iteration time", ylabel=f"Time per step ({seconds})")
    lines_by_devices(right, data, rate)
    right.set(title=title, ylabel=unit)
    for axes in (left, right):
        axis_of_devices(axes, data)
    legend_below(figure, left, right)
    return figure, data


def speedup(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Speed-up and efficiency against devices, with the ideal line."""
    alone = only_count(measures)
    if alone:
        raise NothingToShow(f"{alone}: neither speed-up nor efficiency")
    data = _series(measures, ["speedup", "efficiency"])
    devices = sorted(data["devices"].unique())
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    ideal = {"color": "0.45", "linestyle": (0, (1, 1.5)), "linewidth": 1.2, "label": "ideal", "zorder": 1}
    left.plot(devices, devices, **ideal)
    lines_by_devices(left, data, "speedup")
    left.set(title="Speed-up", ylabel="Speed-up over one device")
    right.plot(devices, [1.0] * len(devices), **ideal)
    lines_by_devices(right, data, "efficiency")
    right.set(title="Efficiency", ylabel="Speed-up per device")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        axis_of_devices(axes, data)
    legend_below(figure, left, right)
    return figure, data


def _series(measures: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    data = over_repeats(measures, values)
    data.insert(0, "series", labels(data, varied(measures, besides=("devices", "repeat"))))
    return data


def lines_by_devices(
    axes: Axes, data: pd.DataFrame, value: str, scale: float = 1.0, palette: Sequence[Colour] | None = None
) -> None:
    """Draw one line per `series`; whiskers show the interval over repeats. What is known of none is said."""
    if data[value].isna().all():
        say(axes, "not recorded")
        return
    names = list(dict.fromkeys(data["series"]))
    for index, (name, colour) in enumerate(zip(names, palette or colours(len(names)), strict=True)):
        rows = data[(data["series"] == name) & data[value].notna()].sort_values("devices")
        if rows.empty:
            continue
        # A little apart, so that marks of equal height do not cover each other.
        aside = ASIDE * (index - (len(names) - 1) / 2)
        drawn = axes.errorbar(
            rows["devices"] + aside,
            rows[value].astype(float) * scale,
            yerr=whiskers(rows, value, scale),
            label=name,
            color=colour,
            marker=MARKERS[index % len(MARKERS)],
            linestyle=DASHES[index % len(DASHES)],
            capsize=3,
            markersize=5,
            markerfacecolor="white" if index % 2 else colour,
            clip_on=False,  # a mark at zero is whole
        )
        for artist in drawn.get_children():
            artist.set_in_layout(False)


def axis_of_devices(axes: Axes, data: pd.DataFrame) -> None:
    """Count devices on one axis, saying which, and begin the other at zero; an empty panel stays as it is."""
    if not axes.has_data():
        return
    devices = sorted(int(n) for n in data["devices"].unique())
    if len(devices) > 1 and devices[-1] > 8:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(devices))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    shared = ", one batch for all" if "scaling" in data and set(data["scaling"]) == {"strong"} else ""
    axes.set_xlabel(f"{device_axis(data)}{shared}")
    axes.margins(x=0.12, y=0)
    axes.set_ylim(0, 1.07 * axes.get_ylim()[1])
