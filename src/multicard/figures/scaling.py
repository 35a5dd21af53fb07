"""Figures over the number of devices: iteration time and throughput, speed-up, image sizes."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.runs.notices import UNCOUNTED
from multicard.analysis.scaling.speedup import over_repeats, speedups, throughput_of
from multicard.core.units import MINUTES, SECONDS, percent, unit_for
from multicard.figures.labelling import boxes_of, label_points
from multicard.figures.points import draw_series, height_for, series_of
from multicard.figures.series import labels, only_count, unit
from multicard.figures.style import WIDTH_IN, NothingToShow, legend_below, ordered_colours, say

# Title and label of each measure of speed.
THROUGHPUT = {
    "throughput_samples_per_s": ("Throughput", "Distinct samples per second"),
    "tokens_per_s": ("Throughput, without padding", "Tokens per second"),
    "steps_per_s": ("Throughput in steps", "Steps per second"),
}


def iteration_time(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and throughput over devices: in distinct samples, in tokens of LLM runs, else in steps."""
    rate = throughput_of(measures)
    data, runs = series_of(measures, ["iteration_time_s", rate])
    shown = _with_scaling(measures, data)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, height_for(data)))
    scale, seconds = unit_for(data["iteration_time_s"], SECONDS)
    draw_series(left, shown, "iteration_time_s", "Iteration time", f"Time per step ({seconds})", scale, runs)
    draw_series(right, shown, rate, *THROUGHPUT[rate], runs=runs, named=False)
    legend_below(figure, left, right)
    return figure, data


def speedup(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Speed-up over devices with ideal scaling; the efficiency is written at the largest number of devices."""
    only = only_count(measures)
    if only:
        raise NothingToShow(f"{only}: neither speed-up nor efficiency")
    if throughput_of(measures) == "steps_per_s":
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step for speed-up and efficiency")
    data, runs = series_of(measures, ["speedup", "efficiency"])
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
    ideal = {count: count for count in sorted(data["devices"].unique())}
    shown = _with_scaling(measures, data)
    known = data.dropna(subset=["efficiency"])
    several = len(known) > 1 and data["series"].nunique() > 1  # whose labels must be short
    title, word = ("Speed-up, labelled with the efficiency", "") if several else ("Speed-up", " efficient")
    draw_series(axes, shown, "speedup", title, "Speed-up over one device", runs=runs, ideal=ideal)
    legend_below(figure, axes)
    last = known.loc[known.groupby("series", sort=False)["devices"].idxmax()]
    named = [
        (row.devices, row.speedup, f"{percent(row.efficiency)}{word}") for row in last[last["devices"] > 1].itertuples()
    ]
    label_points(axes, named if len(known) > 1 else [], boxes_of(axes), most=len(named))
    return figure, data


def image_size_scaling(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Time of a pass over the data and efficiency over devices, a line per image size.

    Other varied parameters, such as the precision, have a row of panels per combination.
    """
    others = varied(measures, besides=("image_size", "devices", "repeat"))
    data = over_repeats(measures, ["estimated_epoch_time_s", "efficiency"]).sort_values(
        ["image_size", "devices"], kind="stable", ignore_index=True
    )
    runs = measures[measures["outcome"] == "completed"]
    data, runs = (
        each.assign(
            series=[unit("image_size", size) for size in each["image_size"]],
            panel=labels(each, others) if others else "",
        )
        for each in (data, runs)
    )
    data = data[["series", "panel", *data.columns.drop(["series", "panel"])]]
    panels, names = list(dict.fromkeys(runs["panel"])), list(dict.fromkeys(data["series"]))
    palette = dict(zip(names, ordered_colours(len(names)), strict=True))
    only = only_count(measures)

    figure, rows = plt.subplots(len(panels), 2, figsize=(WIDTH_IN, 0.7 + 2.4 * len(panels)), squeeze=False)
    for (left, right), name in zip(rows, panels, strict=True):
        own, of = data[data["panel"] == name], runs[runs["panel"] == name]
        scale, seconds = unit_for(own["estimated_epoch_time_s"], MINUTES)
        time, share = (f"{name}: time", f"{name}: efficiency") if name else ("Time", "Efficiency")
        draw_series(left, own, "estimated_epoch_time_s", time, f"Time per pass ({seconds})", scale, of, palette)
        right.set_title(share)
        if only:
            say(right, f"{only}:\nno efficiency")
        elif own["efficiency"].isna().all():
            say(right, "no run on one device to compare with:\nno efficiency")
        else:
            ideal = dict.fromkeys(sorted(own["devices"].unique()), 1.0)
            draw_series(right, own, "efficiency", share, "Speed-up per device", 1.0, of, palette, ideal)
            right.yaxis.set_major_formatter(PercentFormatter(1.0))
    legend_below(figure, *rows.flat)
    return figure, data


def _with_scaling(measures: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """State the kind of scaling, where it is one, for the axis of devices."""
    kinds = set(speedups(measures)["scaling"])
    return data.assign(scaling=kinds.pop() if len(kinds) == 1 else "unknown")
