"""Precisions side by side, and what one value of a parameter gains over another, all else being equal."""

from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.analysis.comparison.comparisons import ORDER, as_used, gains, means, varied
from multicard.core.text import for_figure
from multicard.core.units import SECONDS, unit_for
from multicard.figures.bars import grouped, limits
from multicard.figures.points import draw_series, height_for
from multicard.figures.series import compared, labels, unit
from multicard.figures.style import (
    MARKERS,
    WIDTH_IN,
    NothingToShow,
    colours,
    legend_below,
    ordered_colours,
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
    others = varied(measures, besides=("precision", "devices", "repeat"))
    data, runs = compared(measures, ["iteration_time_s", "test_accuracy"], others)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.0))
    scale, unit = unit_for(data["iteration_time_s"], SECONDS)
    grouped(left, data, "precision", "iteration_time_s", scale, runs=runs)
    left.set(title="Iteration time", ylabel=f"Time per step ({unit})")
    grouped(right, data, "precision", "test_accuracy", runs=runs)
    right.set(title="Test accuracy", ylabel="After the last epoch", ylim=(0, 1.04))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    if data["series"].nunique() == 1:
        for container in left.containers:
            container.set_label("_")
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
    values = list(dict.fromkeys(data["value"]))
    runs = _gains_of_repeats(measures, parameter, data["base"].iloc[0], [*others, "devices", "repeat"])
    runs["series"] = [for_figure(name) for name in labels(runs, others)] if others else "gain"
    accuracy = parameter == "precision" and measures["test_accuracy"].notna().any()
    count = len(values) + accuracy

    several = data["devices"].nunique() > 1 or accuracy
    height = 3.2 if several else height_for(data)
    figure, panels = plt.subplots(1, count, figsize=(WIDTH_IN, height), squeeze=False)
    names = list(dict.fromkeys(data["series"]))
    by_size = others == ["image_size"]
    look = dict(zip(names, (ordered_colours if by_size else colours)(len(names)), strict=True))
    shared = [0.0, 0.0]
    for index, (axes, value) in enumerate(zip(panels[0], values, strict=False)):
        own, base = data[data["value"] == value].assign(device=measures["device"].iloc[0]), data["base"].iloc[0]
        title = f"{_worded(parameter, value)} over {_worded(parameter, base)}"
        draw_series(
            axes, own, "gain", title, "Speed gain (%)", 100.0, runs[runs[parameter] == value],
            palette=look if len(names) > 1 else None, baseline=0, named=index == 0, several=several,
        )  # fmt: skip
        low, high = axes.get_ylim() if several else axes.get_xlim()
        shared = [min(shared[0], low), max(shared[1], high)]
    for axes in panels[0][: len(values)]:
        if axes.containers:
            ends = limits(100 * data["gain"], *shared, 100 * runs["gain"])
            (axes.set_ylim if several else axes.set_xlim)(ends)
    if accuracy:
        _accuracy(panels[0][-1], measures, parameter, look)
    legend_below(figure, *panels[0])
    return figure, data


gain_precision, gain_pin_memory, gain_loader, gain_layout, gain_binding, gain_preset, gain_profiler = (
    partial(gain, parameter=parameter) for parameter in ORDER
)


def _gains_of_repeats(measures: pd.DataFrame, parameter: str, base: object, by: list[str]) -> pd.DataFrame:
    """The completed runs that have a partner with the base value in their repeat, and their `gain` over it."""
    measures = as_used(measures, parameter)
    completed = measures[measures["outcome"] == "completed"]
    bases = completed.loc[completed[parameter] == base, [*by, "iteration_time_s"]]
    pairs = completed.merge(bases, on=by, suffixes=("", "_base"))
    return pairs.assign(gain=pairs["iteration_time_s_base"] / pairs["iteration_time_s"] - 1)


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


def _accuracy(axes: Axes, measures: pd.DataFrame, parameter: str, look: dict) -> None:
    """Draw the test accuracy after the last epoch, a point per configuration in the colour of its series."""
    others = varied(measures, besides=(parameter, "devices", "repeat"))
    data = means(measures, ["test_accuracy"])
    data["series"] = labels(data, others) if others else "gain"
    values = [value for value in ORDER[parameter] if (data[parameter] == value).any()]
    axes.set(title="Test accuracy", ylabel="After the last epoch (%)")
    axes.yaxis.set_label_position("right")
    axes.yaxis.tick_right()
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
