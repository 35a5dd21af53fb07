"""Figures over the number of devices: iteration time and throughput, speed-up and efficiency, image sizes."""

from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.answers.comparison.comparisons import varied
from multicard.answers.scaling.speedup_tables import over_repeats, speedups, throughput_of
from multicard.core.units import MINUTES, SECONDS, unit_for
from multicard.figures.catalog import POINTS, RATIOS, REPEATS, figure
from multicard.figures.points import Quantity, Series, draw_series, series_of
from multicard.figures.series import completed_of, device_word, labels, only_count, setting_label
from multicard.figures.style import (
    NothingToShow,
    is_column,
    legend_below,
    note_inside,
    one_panel,
    ordered_colours,
    side_by_side,
    width_in,
)
from multicard.results.notices import UNCOUNTED
from multicard.results.results import Results

# How the throughput is drawn, by its column; there is one for each unit of work.
THROUGHPUTS = {
    throughput.column: throughput
    for throughput in (
        Quantity("throughput_samples_per_s", "Throughput", "Distinct samples per second", follows_devices=True),
        Quantity("tokens_per_s", "Throughput, without padding", "Tokens per second", follows_devices=True),
        Quantity("steps_per_s", "Throughput in steps", "Steps per second"),
    )
}


@figure(
    "How long does a step take, and how much work is done per second, as devices are added?",
    "Iteration time: elapsed time per optimizer step. Throughput: for vision runs and scripts, distinct training "
    "samples per second (under plain ddp all ranks process the same samples, which count once); for LLM runs, tokens "
    f"per second without padding; for scripts with unknown samples, steps per second. {POINTS}",
    brief="Time is elapsed time per optimizer step. Throughput counts every sample once, and no padding.",
    paper_figure="A, figures 1 and 4",
)
def iteration_time(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the iteration time (left) and the throughput (right) over the number of devices, a line per series.

    The table has a row per configuration: `series`, its parameters, `repeats`, `iteration_time_s` in seconds, and the
    throughput in the unit of its name (`throughput_samples_per_s`, `tokens_per_s` or `steps_per_s`), both with the
    bounds of their intervals (`…_low`, `…_high`).
    """
    measures = results.frame()
    rate = throughput_of(measures)
    series = series_of(results, ["iteration_time_s", rate])
    shown = _with_scaling(series, results)
    figure, (time_axes, rate_axes) = side_by_side(series.height_in)
    scale, unit = unit_for(series.means["iteration_time_s"], SECONDS)
    time = Quantity("iteration_time_s", "Iteration time", f"Time per step ({unit})", scale)
    draw_series(time_axes, shown, time)
    draw_series(rate_axes, shown, THROUGHPUTS[rate])
    if not series.is_over_devices and not is_column():
        # The left panel has the names of the rows.
        rate_axes.tick_params(labelleft=False)
    legend_below(figure, time_axes, rate_axes)
    return figure, series.means


@figure(
    "What does each additional device gain?",
    "Speed-up: throughput (distinct samples for vision runs and scripts, tokens for LLM runs) relative to one device "
    "(strategy single if the scenario has it). Efficiency: the speed-up per device. The thin line is ideal scaling; "
    "the axis of devices says whether scaling is weak or strong. Marks are geometric means of the ratios of repeats, "
    f"small dots are single repeats. Whiskers {RATIOS}. Under weak scaling the same number of passes over the data "
    "means fewer updates.",
    brief="Throughput relative to one device (strategy single where it was measured), and that per device. The thin "
    "line is ideal scaling. Under weak scaling the same number of passes means fewer updates.",
    paper_figure="A, figures 1 and 4",
)
def speedup(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the speed-up (left) and the efficiency (right) over the number of devices, with ideal scaling.

    The table has a row per configuration: `series`, its parameters, `repeats`, and the ratios `speedup` and
    `efficiency` with the bounds of their intervals (`…_low`, `…_high`).
    """
    measures = results.frame()
    only = only_count(measures)
    if only:
        raise NothingToShow(f"{only}: neither speed-up nor efficiency")
    if throughput_of(measures) == "steps_per_s":
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step for speed-up and efficiency")
    series = series_of(results, ["speedup", "efficiency"])
    shown = _with_scaling(series, results)
    figure, (speedup_axes, efficiency_axes) = side_by_side(3.0)
    counts = sorted(series.means["devices"].unique())
    ideal_speedup = {count: count for count in counts}
    times = Quantity("speedup", "Speed-up", "Times one device", ideal=ideal_speedup, follows_devices=True)
    draw_series(speedup_axes, shown, times)
    _draw_efficiency(efficiency_axes, shown, "Efficiency")
    legend_below(figure, speedup_axes, efficiency_axes)
    return figure, series.means


@figure(
    "How much work does each device do per second, as devices are added?",
    "Throughput divided by the number of devices: for vision runs and scripts, distinct training samples per second; "
    "for LLM runs, tokens per second without padding; for scripts with unknown samples, steps per second. A level line "
    f"is ideal scaling. {POINTS}",
    brief="Distinct samples, tokens without padding, or steps per second, divided by the number of devices. A level "
    "line is ideal scaling.",
)
def throughput_per_device(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the throughput per device over the number of devices, a line per series.

    The table has a row per configuration: `series`, its parameters, `repeats`, and the throughput in the unit of its
    name (`throughput_samples_per_s`, `tokens_per_s` or `steps_per_s`) divided by the number of devices, with
    `_per_device` after its name and the bounds of its interval (`…_low`, `…_high`).
    """
    rate = throughput_of(results.frame())
    series = series_of(results, [rate]).per_device(rate)
    figure, axes = one_panel(series.height_in)
    of_all = THROUGHPUTS[rate]
    word = device_word(series.means)
    per_device = Quantity(f"{rate}_per_device", f"{of_all.title} per {word}", f"{of_all.label}\nand {word}")
    draw_series(axes, _with_scaling(series, results), per_device)
    legend_below(figure, axes)
    return figure, series.means


@figure(
    "Does adding devices pay off more for larger images?",
    "Time: duration of one pass over the training data (time per step × steps per pass), without evaluation; "
    "extrapolated from the measured steps if passes were cut short. Efficiency: speed-up over one device, divided by "
    "the number of devices. Thin lines are ideal scaling; those of times start at the fewest devices. Marks are means "
    f"over repeats (of efficiency, geometric means of ratios), small dots are single repeats. Whiskers {REPEATS}.",
    brief="Time of a pass over the training data, without evaluation; and speed-up per device. Thin lines are "
    "ideal scaling.",
    paper_figure="A, figure 2",
)
def image_size_scaling(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the time of a pass (left) and the efficiency (right) over the number of devices, a line per image size.

    If other parameters vary, such as the precision, each combination of their values has a row of panels.

    The table has a row per configuration: `series` (the image size), `panel` (values of the other parameters, empty if
    none varies), its parameters, `repeats`, `estimated_epoch_time_s` in seconds and the ratio `efficiency`, both with
    the bounds of their intervals (`…_low`, `…_high`).
    """
    measures = results.frame()
    panel_parameters = varied(measures, besides=("image_size", "devices", "repeat"))
    means = over_repeats(results, ["estimated_epoch_time_s", "efficiency"])
    means = means.sort_values(["image_size", "devices"], kind="stable", ignore_index=True)
    means = _by_image_size(means, panel_parameters)
    runs = _by_image_size(completed_of(measures), panel_parameters)
    panels = list(dict.fromkeys(runs["panel"]))
    sizes = list(dict.fromkeys(means["series"]))
    palette = dict(zip(sizes, ordered_colours(len(sizes)), strict=True))
    only = only_count(measures)
    column_count = 1 if is_column() else 2
    row_count = 2 * len(panels) // column_count
    figure, grid = plt.subplots(row_count, column_count, figsize=(width_in(), 0.7 + 2.3 * row_count), squeeze=False)
    rows = grid.reshape(len(panels), 2)
    for (time_axes, efficiency_axes), panel in zip(rows, panels, strict=True):
        means_of_panel = means[means["panel"] == panel]
        runs_of_panel = runs[runs["panel"] == panel]
        series = Series(means_of_panel, runs_of_panel, palette)
        _draw_time_of_pass(time_axes, series, f"{panel}: time" if panel else "Time")
        title = f"{panel}: efficiency" if panel else "Efficiency"
        if only or series.means["efficiency"].isna().all():
            reason = only or "no run on one device to compare with"
            efficiency_axes.set_title(title)
            note_inside(efficiency_axes, f"{reason}:\nno efficiency")
        else:
            _draw_efficiency(efficiency_axes, series, title)
    legend_below(figure, *rows.flat)
    other_columns = means.columns.drop(["series", "panel"])
    return figure, means[["series", "panel", *other_columns]]


def _by_image_size(rows: pd.DataFrame, panel_parameters: list[str]) -> pd.DataFrame:
    """Return rows with the image size as `series` and the values of `panel_parameters` as `panel`, empty if none."""
    sizes = [setting_label("image_size", size) for size in rows["image_size"]]
    return rows.assign(series=sizes, panel=labels(rows, panel_parameters) if panel_parameters else "")


def _draw_time_of_pass(axes: Axes, series: Series, title: str) -> None:
    """Draw the duration of one pass over the training data, in the unit that suits it."""
    scale, unit = unit_for(series.means["estimated_epoch_time_s"], MINUTES)
    quantity = Quantity("estimated_epoch_time_s", title, f"Time per pass ({unit})", scale, follows_devices=True)
    if series.is_over_devices:
        _draw_ideal_times(axes, series, quantity)
    draw_series(axes, series, quantity)


def _draw_ideal_times(axes: Axes, series: Series, quantity: Quantity) -> None:
    """Draw for each series the time that ideal scaling from its smallest number of devices would take."""
    for _, rows in series.means.groupby("series", sort=False):
        measured = rows.assign(shown=quantity.values(rows)).dropna(subset=["shown"]).sort_values("devices")
        if len(measured) > 1:
            first = measured.iloc[0]
            ideal = first["shown"] * first["devices"] / measured["devices"]
            axes.plot(measured["devices"], ideal, color="0.3", linewidth=0.7, label="ideal", zorder=1)


def _draw_efficiency(axes: Axes, series: Series, title: str) -> None:
    """Draw the efficiency in per cent, with a line at the ideal 100%."""
    ideal = dict.fromkeys(sorted(series.means["devices"].unique()), 1.0)
    ideal_and_little_more = 1.25
    label = "Speed-up per device"
    quantity = Quantity("efficiency", title, label, ideal=ideal, most=ideal_and_little_more, is_in_percent=True)
    draw_series(axes, series, quantity)


def _with_scaling(series: Series, results: Results) -> Series:
    """Return series with a column `scaling` for the axis of devices: "unknown" if there are several kinds."""
    scalings = set(speedups(results)["scaling"])
    scaling = scalings.pop() if len(scalings) == 1 else "unknown"
    return replace(series, means=series.means.assign(scaling=scaling))
