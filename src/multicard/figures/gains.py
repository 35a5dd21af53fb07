"""Precisions side by side, and what one value of a parameter gains over another, all else being equal."""

from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from multicard.analysis.comparison.comparisons import ORDER, configurations, gains, means, varied
from multicard.core.text import for_figure
from multicard.core.units import SECONDS, unit_for
from multicard.figures.bars import grouped, limits
from multicard.figures.series import device_axis, device_labels, labels, unit
from multicard.figures.style import (
    DASHES,
    MARKERS,
    WEAK,
    WIDTH_IN,
    NothingToShow,
    colours,
    explain_marks,
    legend_below,
    ordered_colours,
    say,
)

# Values that need more words than a series name has.
WORDED = {
    ("pin_memory", True): "Pinned",
    ("profiler", "none"): "no profiler",
    ("binding", "none"): "unbound ranks",
    ("binding", "numa"): "Bound",
}

OFFSET = 0.09  # between neighbouring series, in ticks of the axis


def precision(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and test accuracy per precision, one group of bars per precision."""
    data = configurations(measures, ["iteration_time_s", "test_accuracy"])
    data.insert(0, "series", device_labels(data, varied(measures, besides=("precision", "devices", "repeat"))))

    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.0))
    scale, unit = unit_for(data["iteration_time_s"], SECONDS)
    grouped(left, data, "precision", "iteration_time_s", scale)
    left.set(title="Iteration time", ylabel=f"Time per step ({unit})")
    grouped(right, data, "precision", "test_accuracy")
    right.set(title="Test accuracy", ylabel="After the last epoch", ylim=(0, 1.04))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    if data["series"].nunique() > 1:
        legend_below(figure, left)
    return figure, data


def gain(measures: pd.DataFrame, parameter: str) -> tuple[Figure, pd.DataFrame]:
    """Speed gain per number of devices: a panel per compared value, a series per combination of what else varies.

    Of precisions also the test accuracy, since a gain that costs accuracy may not be one.
    """
    data = gains(measures, parameter)
    if data.empty:
        raise NothingToShow(_why_empty(measures, parameter))
    others = varied(measures, besides=(parameter, "devices", "repeat"))
    data.insert(0, "series", [for_figure(name) for name in labels(data, others)] if others else "gain")
    compared = list(dict.fromkeys(data["value"]))
    accuracy = parameter == "precision" and measures["test_accuracy"].notna().any()
    count = len(compared) + accuracy

    figure, panels = plt.subplots(1, count, figsize=(WIDTH_IN, 3.2), squeeze=False)
    names = list(dict.fromkeys(data["series"]))
    by_size = others == ["image_size"]
    look = dict(zip(names, (ordered_colours if by_size else colours)(len(names)), strict=True))
    for axes, value in zip(panels[0], compared, strict=False):
        _gains(axes, data[data["value"] == value], look, sorted(data["devices"].unique()), names)
        base = data["base"].iloc[0]
        axes.set(title=f"{_worded(parameter, value)} over {_worded(parameter, base)}", xlabel=device_axis(measures))
    low, high = (f([axes.get_ylim()[end] for axes in panels[0][: len(compared)]]) for f, end in ((min, 0), (max, 1)))
    for axes in panels[0][: len(compared)]:
        axes.set_ylim(limits(100 * data["gain"], low, high))
    panels[0][0].set_ylabel("Speed gain (%)")
    for axes in panels[0][1 : len(compared)]:
        axes.tick_params(labelleft=False)
    if accuracy:
        _accuracy(panels[0][-1], measures, parameter, look)
    legend_below(figure, *panels[0])
    return figure, data


gain_precision, gain_pin_memory, gain_loader, gain_layout, gain_binding, gain_preset, gain_profiler = (
    partial(gain, parameter=parameter) for parameter in ORDER
)


def _why_empty(measures: pd.DataFrame, parameter: str) -> str:
    """Why nothing can be compared: there are no two such runs, or there are and their times were not recorded."""
    name = parameter.replace("_", " ")
    completed = measures[measures["outcome"] == "completed"]
    if parameter == "profiler" and "profiler_used" in completed and completed["profiler_used"].nunique() == 1:
        return f"all completed runs used the same profiler: {completed['profiler_used'].iloc[0]}"
    others = [*varied(measures, besides=(parameter, "devices", "repeat")), "devices"]
    if (completed.groupby(others, dropna=False)[parameter].nunique() > 1).any():
        return f"completed runs differ in {name} alone, but not both have recorded step times"
    return f"no two completed runs differ in {name} alone"


def _worded(parameter: str, value: object) -> str:
    return WORDED.get((parameter, value)) or unit(parameter, value)


def _gains(axes: Axes, data: pd.DataFrame, look: dict, devices: list[int], names: list[str]) -> None:
    """Draw a line of points per series; a point's marker says whether it shows a difference."""
    axes.axhline(0, color="0.3", linewidth=1.0, zorder=1)
    for index, name in enumerate(names):
        rows = data[data["series"] == name].sort_values("devices")
        offset = OFFSET * (index - (len(names) - 1) / 2)
        where = [devices.index(count) + offset for count in rows["devices"]]
        marker, colour = MARKERS[index % len(MARKERS)], look[name]
        axes.errorbar(
            where,
            100 * rows["gain"],
            yerr=[100 * (rows["gain"] - rows["gain_low"]), 100 * (rows["gain_high"] - rows["gain"])],
            label=name if len(names) > 1 else "_",
            color=colour,
            marker=marker,
            linestyle=DASHES[index % len(DASHES)] if len(devices) > 1 else "none",
            capsize=3,
            markersize=5,
        )
        for weak, fill in WEAK.items():
            those = (rows["verdict"] == weak).tolist()
            axes.plot(
                [at for at, drawn in zip(where, those, strict=True) if drawn],
                100 * rows["gain"][those],
                linestyle="none",
                marker=marker,
                markersize=5,
                color=colour,
                zorder=3,
                **fill,
            )
    explain_marks(axes, set(data["verdict"]))
    axes.set_xlim(-0.5, len(devices) - 0.5)
    axes.xaxis.set_major_locator(FixedLocator(range(len(devices))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(count) for count in devices])
    axes.grid(visible=False, axis="x")


def _accuracy(axes: Axes, measures: pd.DataFrame, parameter: str, look: dict) -> None:
    """Draw the test accuracy after the last epoch, a point per configuration in the colour of its series."""
    others = varied(measures, besides=(parameter, "devices", "repeat"))
    data = means(measures, ["test_accuracy"])
    data["series"] = labels(data, others) if others else "gain"
    values = [value for value in ORDER[parameter] if (data[parameter] == value).any()]
    axes.set(title="Test accuracy", ylabel="After the last epoch (%)")
    axes.yaxis.set_label_position("right")
    axes.yaxis.tick_right()
    if data["test_accuracy"].isna().all():
        say(axes, "not recorded")
        return
    names = list(dict.fromkeys(data["series"]))
    for index, name in enumerate(names):
        rows = data[data["series"] == name]
        offset = OFFSET * (index - (len(names) - 1) / 2)
        axes.plot(
            [values.index(value) + offset for value in rows[parameter]],
            100 * rows["test_accuracy"],
            linestyle="none",
            marker=MARKERS[index % len(MARKERS)],
            color=look.get(name, "0.3"),
            markersize=5,
        )
    axes.set_xticks(range(len(values)), [unit(parameter, value) for value in values])
    axes.set(xlim=(-0.5, len(values) - 0.5))
    axes.margins(y=0.2)
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, 100 + 0.05 * (high - low)))
    axes.grid(visible=False, axis="x")
