"""The figure of a whole training's time against its device-hours."""

import itertools
import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure

from multicard.answers.choice.choice import Choice
from multicard.answers.choice.choices import Choices, as_table, choices
from multicard.core.text import counted, for_figure
from multicard.core.units import MINUTES, unit_for
from multicard.figures.catalog import figure
from multicard.figures.marks import id_of_points
from multicard.figures.series import device_word, setting_label
from multicard.figures.style import (
    NUMBER_BOX,
    SMALLEST_POINTS,
    Colour,
    NothingToShow,
    colours,
    is_column,
    legend_below,
    remove_legend,
    width_in,
)
from multicard.results.notices import UNCOUNTED
from multicard.results.provenance import distinguishing_words
from multicard.results.results import Results

# Units of a training's time, and of the time of all its devices: size in seconds, and symbol or name.
HOURS = ((86400.0, "days"), (3600.0, "h"), *MINUTES)
DEVICE_HOURS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
DEVICES_OF_HOURS = {"cuda": "GPU", "cpu": "Process"}

# Markers that can be filled or hollow.
FILLED_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d", "H", "8")


@figure(
    "What does a shorter training cost in device-hours?",
    "Time of the whole training (the same number of samples or tokens for all: the most epochs of the runs) at the "
    "measured throughput, against the hours of all its devices together, without start, tests and saving. A mark is "
    "the geometric mean over the repeats of a configuration, on the ray of its number of devices; its shape is its "
    "settings, as far as configurations of one training differ in them. A line joins the fastest on each number of "
    "devices; a hollow mark is no better in time or in hours than another one of the same training. Whiskers are 95% "
    "confidence intervals: time and hours are uncertain together, so they lie on the rays. Another colour (global "
    "batch size, precision, learning rate, technique) is not the same training. Each job has a panel. If the length of "
    "a pass is unknown, the training has a million samples.",
    brief="The whole training at the measured throughput, without start, tests and saving. Marks lie on the ray of "
    "their number of devices; a line joins the fastest; a hollow one is no better in time or in hours than another. "
    "Another colour is not the same training.",
)
def tradeoff(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the time of a whole training against its device-hours: a panel per job, a mark per configuration.

    The table has a row per configuration, with the columns of `answers.choice.choices.as_table`. The figure shows
    `time_s` in seconds with its bounds (`time_s_low`, `time_s_high`) against `device_hours`. Both are empty, and the
    configuration has no mark, if none of its runs completed.
    """
    jobs = [job for job in choices(results) if job.rows]
    if not jobs:
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step")
    data = as_table(jobs)
    timed = data.dropna(subset=["time_s"])
    settings = [_settings(job, choice) for job in jobs for choice in job.rows]
    trainings_of_rows = [for_figure(changes or "reference training") for changes in timed["changes"]]
    # The names begin with an underscore so that seaborn makes no entry of the legend from them.
    timed = timed.assign(_settings=settings, _training=trainings_of_rows)
    trainings = list(dict.fromkeys(timed["_training"]))
    palette = dict(zip(trainings, colours(len(trainings)), strict=True))
    markers = dict(zip(dict.fromkeys(settings), itertools.cycle(FILLED_MARKERS), strict=False))
    rows_of_panels = list(timed.groupby(["job", "machine", "versions"], sort=False, dropna=False))
    machines = distinguishing_words([(machine, versions) for (_, machine, versions), _ in rows_of_panels])
    panel_count = len(rows_of_panels)
    column_count = 1 if is_column() else min(2, panel_count)
    row_count = math.ceil(panel_count / column_count)
    height_in = 3.2 if row_count == 1 else 0.6 + 2.6 * row_count
    figure, grid = plt.subplots(row_count, column_count, figsize=(width_in(), height_in), squeeze=False)
    panels = grid.flat[:panel_count]
    unused = grid.flat[panel_count:]
    for axes, ((job, *_), rows), machine in zip(panels, rows_of_panels, machines, strict=True):
        _draw_job(axes, rows, palette, markers)
        title = f"{job} ({machine})" if machine else job
        axes.set_title(for_figure(title, 45))
    for axes in unused:
        axes.remove()
    legend_below(figure, *panels)
    return figure, data


def _settings(job: Choices, choice: Choice) -> str:
    """Return the settings of a choice in which choices of one training differ, as a label.

    If they do not differ, the label names the choice in short.
    """
    values = {name: choice.configuration[name] for name in job.recipe_names}
    words = ", ".join(setting_label(name, value) for name, value in values.items() if value is not None)
    return words or for_figure(choice.configuration.words(without=("devices",), in_short=True))


def _draw_job(axes: Axes, rows: pd.DataFrame, palette: Mapping[str, Colour], markers: Mapping[str, str]) -> None:
    """Draw the configurations of one job, with a colour per training and a marker per combination of settings.

    Parameters
    ----------
    axes
        The panel to draw in.
    rows
        A row per configuration: `time_s` with its bounds, `device_hours`, `devices`, `device`, and as words of the
        legend `_settings` and `_training`.
    palette, markers
        Colour of each training, and marker of all settings in the figure, so that they are the same in all panels.
    """
    # Imported here because seaborn takes a second to import.
    import seaborn as sns

    scale, unit = unit_for(rows["time_s"], HOURS)
    cost_scale, cost_unit = unit_for(3600 * rows["device_hours"], DEVICE_HOURS)
    rows = rows.assign(_time=scale * rows["time_s"], _cost=cost_scale * 3600 * rows["device_hours"])
    has_several_colours = len(palette) > 1
    has_several_markers = len(markers) > 1
    sns.scatterplot(
        rows,
        x="_cost",
        y="_time",
        style="_settings" if has_several_markers else None,
        style_order=list(markers) if has_several_markers else None,
        markers=dict(markers) if has_several_markers else True,
        s=60,
        ax=axes,
        hue="_training" if has_several_colours else None,
        hue_order=list(palette) if has_several_colours else None,
        palette=list(palette.values()) if has_several_colours else None,
        color=None if has_several_colours else next(iter(palette.values())),
    )
    remove_legend(axes)
    [marks] = axes.collections
    _fill_the_best(marks, rows)
    for training, rows_of_training in rows.groupby("_training", sort=False):
        _join_the_fastest(axes, rows_of_training, palette[training])
    # Whiskers determine the ends of the axes up to twice the largest values; longer whiskers are cut.
    longest_whisker = (rows["time_s_high"] / rows["time_s"]).fillna(1.0).max()
    space_of_labels = 1.25
    space = max(space_of_labels, 1.1 * min(2.0, longest_whisker))
    device = rows["device"].iloc[0]
    axes.set(
        xlim=(0, space * rows["_cost"].max()),
        ylim=(0, space * rows["_time"].max()),
        xlabel=f"{DEVICES_OF_HOURS[device]}-{cost_unit} of the training",
        ylabel=f"Time of the training ({unit})",
    )
    _count_coinciding(axes, rows)
    _draw_rays(axes, rows)
    _keep_numbers(axes, rows)


def _keep_numbers(axes: Axes, rows: pd.DataFrame) -> None:
    """Keep the numbers of the marks for a page: they are drawn by one collection, which no page can tell apart.

    So a line without ink goes through all of them.
    """
    trainings = rows["changes"].fillna("")
    names = [", ".join(filter(None, pair)) for pair in zip(rows["_settings"], trainings, strict=True)]
    [line] = axes.plot(rows["_cost"], rows["_time"], linestyle="none", marker="o", alpha=0, label="_")
    line.set_gid(id_of_points("time_s", rows.assign(series=names)))


def _draw_rays(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a ray from the origin for each number of devices, and name it at its end.

    Device-hours are devices × time, so the marks of one number of devices lie on a ray.
    """
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    highest_label = 0.93 * top
    for devices, rows_of_count in rows.groupby("devices"):
        one = rows_of_count.iloc[0]
        slope = one["_time"] / one["_cost"]
        end = min(right, top / slope)
        axes.plot([0, end], [0, end * slope], color="0.8", linewidth=0.7, zorder=0.5, label="_")
        place = min(right, highest_label / slope)
        axes.annotate(
            counted(devices, device_word(rows)),
            (place, place * slope),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=SMALLEST_POINTS,
            color="0.35",
            bbox=NUMBER_BOX,
            zorder=0.8,
        )


def _count_coinciding(axes: Axes, rows: pd.DataFrame) -> None:
    """Write beside marks that lie on each other how many they are."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    # A mark takes about this part of a panel.
    mark = 0.02
    places = np.column_stack([rows["_cost"] / right, rows["_time"] / top])
    uncounted = list(range(len(places)))
    while uncounted:
        first = uncounted[0]
        same = [index for index in uncounted if (np.abs(places[index] - places[first]) < mark).all()]
        uncounted = [index for index in uncounted if index not in same]
        if len(same) > 1:
            place = places[same].mean(axis=0) * [right, top]
            axes.annotate(
                f"{len(same)} marks",
                tuple(place),
                xytext=(6, -1),
                textcoords="offset points",
                va="top",
                fontsize=SMALLEST_POINTS,
                color="0.2",
            )


def is_dominated(rows: pd.DataFrame) -> list[bool]:
    """Return for each row whether another row of the same training is better.

    The other one takes less time and no more hours, or less hours and no more time.
    """
    costs = rows[["time_s", "device_hours"]].to_numpy()
    trainings = rows["_training"].to_numpy()
    dominated = []
    for training, cost in zip(trainings, costs, strict=True):
        rivals = costs[trainings == training]
        takes_no_more = (rivals <= cost).all(axis=1)
        takes_less_of_one = (rivals < cost).any(axis=1)
        dominated.append(bool((takes_no_more & takes_less_of_one).any()))
    return dominated


def _fill_the_best(marks: Collection, rows: pd.DataFrame) -> None:
    """Make the marks of dominated rows (`is_dominated`) hollow. `marks`: one for each row, in the same order."""
    colours_of_rows = np.broadcast_to(marks.get_facecolor(), (len(rows), 4))
    fills = colours_of_rows.copy()
    fills[is_dominated(rows)] = 1.0, 1.0, 1.0, 1.0
    marks.set(facecolor=fills, edgecolor=colours_of_rows.copy())
    marks.set_linewidth(1.2)
    marks.set_zorder(3)


def _join_the_fastest(axes: Axes, rows: pd.DataFrame, colour: Colour) -> None:
    """Draw a line through the fastest row of each number of devices, and the interval of every row's time.

    Device-hours are time multiplied by devices, so each interval is a part of a line through the origin.
    """
    index_of_fastest = rows.groupby("devices")["time_s"].idxmin()
    fastest = rows.loc[index_of_fastest].sort_values("devices")
    axes.plot(fastest["_cost"], fastest["_time"], color=colour, linewidth=0.9, zorder=2)
    for _, row in rows.dropna(subset=["time_s_low", "time_s_high"]).iterrows():
        bounds = np.array([row["time_s_low"], row["time_s_high"]]) / row["time_s"]
        axes.plot(row["_cost"] * bounds, row["_time"] * bounds, color=colour, linewidth=0.9, alpha=0.6, zorder=1)
