"""Figures over the number of devices: iteration time and throughput, speed-up and efficiency, image sizes."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.runs.notices import UNCOUNTED
from multicard.analysis.scaling.speedup_tables import over_repeats, speedups, throughput_of
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import MINUTES, SECONDS, unit_for
from multicard.figures.catalog import POINTS, RATIOS, REPEATS, figure
from multicard.figures.points import draw_series, height_for, series_of
from multicard.figures.series import completed_of, labels, only_count, unit
from multicard.figures.style import WIDTH_IN, NothingToShow, legend_below, ordered_colours, say

# Title and label of each measure of speed.
THROUGHPUT = {
    "throughput_samples_per_s": ("Throughput", "Distinct samples per second"),
    "tokens_per_s": ("Throughput, without padding", "Tokens per second"),
    "steps_per_s": ("Throughput in steps", "Steps per second"),
}


@figure(
    "How long does a step take, and how much work is done per second, as devices are added?",
    "Iteration time: elapsed time per optimizer step. Throughput: for vision runs and scripts, distinct training "
    "samples per second (under plain ddp all ranks process the same samples, which count once); for LLM runs, tokens "
    f"per second without padding; for scripts whose samples are not known, steps per second. {POINTS}",
    paper_figure="A, figures 1 and 4",
)
def iteration_time(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and throughput over devices: in distinct samples, in tokens of LLM runs, else in steps."""
    measures = tables.measures
    rate = throughput_of(measures)
    data, runs = series_of(measures, ["iteration_time_s", rate])
    shown = _with_scaling(measures, data)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, height_for(data)))
    scale, seconds = unit_for(data["iteration_time_s"], SECONDS)
    draw_series(left, shown, "iteration_time_s", "Iteration time", f"Time per step ({seconds})", scale, runs)
    draw_series(right, shown, rate, *THROUGHPUT[rate], runs=runs)
    if data["devices"].nunique() == 1:
        right.tick_params(labelleft=False)  # the names are those of the left panel
    legend_below(figure, left, right)
    return figure, data


@figure(
    "What does each additional device gain?",
    "Speed-up: throughput (distinct samples for vision runs and scripts, tokens for LLM runs) relative to one device "
    "(strategy single where the scenario has it). Efficiency: the speed-up per device. The thin line is ideal scaling, "
    "and the axis of devices says whether scaling is weak or strong. Marks are geometric means of the ratios of "
    f"repeats, small dots single repeats. Whiskers {RATIOS}. Under weak scaling the same number of passes over the "
    "data means fewer updates.",
    paper_figure="A, figures 1 and 4",
)
def speedup(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Speed-up and efficiency over devices with ideal scaling."""
    measures = tables.measures
    if only := only_count(measures):
        raise NothingToShow(f"{only}: neither speed-up nor efficiency")
    if throughput_of(measures) == "steps_per_s":
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step for speed-up and efficiency")
    data, runs = series_of(measures, ["speedup", "efficiency"])
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.4))
    shown, counts = _with_scaling(measures, data), sorted(data["devices"].unique())
    ideal = dict(zip(counts, counts, strict=True))
    draw_series(left, shown, "speedup", "Speed-up", "Speed-up over one device", runs=runs, ideal=ideal)
    ideal = dict.fromkeys(counts, 1.0)
    draw_series(right, shown, "efficiency", "Efficiency", "Speed-up per device", runs=runs, ideal=ideal)
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    legend_below(figure, left, right)
    return figure, data


@figure(
    "Does adding devices pay off more for larger images?",
    "Time: duration of one pass over the training data (time per step × steps per pass), without evaluation; where "
    "passes were cut short it is extrapolated from the measured steps. Efficiency: speed-up over one device, divided "
    "by the number of devices; the thin line is ideal scaling. Marks are means over repeats, of efficiency geometric "
    f"means of ratios, small dots single repeats. Whiskers {REPEATS}.",
    paper_figure="A, figure 2",
)
def image_size_scaling(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time of a pass over the data and efficiency over devices, a line per image size.

    Other varied parameters, such as the precision, have a row of panels per combination.
    """
    measures = tables.measures
    others = varied(measures, besides=("image_size", "devices", "repeat"))
    data = over_repeats(measures, ["estimated_epoch_time_s", "efficiency"])
    data = data.sort_values(["image_size", "devices"], kind="stable", ignore_index=True)
    data, runs = (
        each.assign(
            series=[unit("image_size", size) for size in each["image_size"]],
            panel=labels(each, others) if others else "",
        )
        for each in (data, completed_of(measures))
    )
    panels, names = list(dict.fromkeys(runs["panel"])), list(dict.fromkeys(data["series"]))
    palette = dict(zip(names, ordered_colours(len(names)), strict=True))
    only = only_count(measures)
    figure, rows = plt.subplots(len(panels), 2, figsize=(WIDTH_IN, 0.7 + 2.4 * len(panels)), squeeze=False)
    for (left, right), name in zip(rows, panels, strict=True):
        own, of = data[data["panel"] == name], runs[runs["panel"] == name]
        scale, seconds = unit_for(own["estimated_epoch_time_s"], MINUTES)
        time, share = (f"{name}: time", f"{name}: efficiency") if name else ("Time", "Efficiency")
        draw_series(left, own, "estimated_epoch_time_s", time, f"Time per pass ({seconds})", scale, of, palette)
        if only or own["efficiency"].isna().all():
            right.set_title(share)
            say(right, f"{only or 'no run on one device to compare with'}:\nno efficiency")
        else:
            ideal = dict.fromkeys(sorted(own["devices"].unique()), 1.0)
            draw_series(right, own, "efficiency", share, "Speed-up per device", 1.0, of, palette, ideal)
            right.yaxis.set_major_formatter(PercentFormatter(1.0))
    legend_below(figure, *rows.flat)
    return figure, data[["series", "panel", *data.columns.drop(["series", "panel"])]]


def _with_scaling(measures: pd.DataFrame, data: pd.DataFrame) -> pd.DataFrame:
    """State the kind of scaling, where it is one, for the axis of devices."""
    kinds = set(speedups(measures)["scaling"])
    return data.assign(scaling=kinds.pop() if len(kinds) == 1 else "unknown")
