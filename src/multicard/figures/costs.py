"""Figures of costs: tuning techniques in time and memory, a training's time against device-hours, energy, memory."""

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure

from multicard.answers.choice.choices import as_table, choices
from multicard.answers.comparison.comparisons import varied
from multicard.answers.scaling.speedup_tables import over_repeats
from multicard.core.text import counted, for_figure
from multicard.core.units import BYTES, JOULES, MINUTES, SECONDS, unit_for
from multicard.figures.bars import draw_grouped_bars, rows_height_in
from multicard.figures.catalog import BARS, POINTS, figure
from multicard.figures.points import Quantity, draw_series, series_of
from multicard.figures.series import completed_of, configuration_names, device_word, labels, named_runs
from multicard.figures.style import (
    SMALLEST_POINTS,
    Colour,
    NothingToShow,
    colours,
    is_column,
    legend_below,
    one_panel,
    remove_legend,
    side_by_side,
    width_in,
)
from multicard.programs import program_of
from multicard.results.notices import UNCOUNTED
from multicard.results.provenance import distinguishing_words
from multicard.results.results import Results

# Units of a training's time: size in seconds, and symbol.
HOURS = ((86400.0, "days"), (3600.0, "h"), *MINUTES)
DEVICE_HOURS = {"cuda": "GPU-hours", "cpu": "Process-hours"}

# Measures of a GPU's memory, and their names in the legend.
MEMORY_KINDS = {
    "peak_memory_bytes": "allocated (PyTorch)",
    "peak_reserved_bytes": "reserved (PyTorch)",
    "device_memory_used_bytes": "used by everything (NVML)",
}
# Name of `peak_memory_bytes` for CPU processes, which have no other measure of memory.
RESIDENT = "resident (CPU process)"


@figure(
    "What does each fine-tuning technique cost in time and memory?",
    "Iteration time: elapsed time per optimizer step. Peak memory: the highest of any rank; on a GPU what PyTorch "
    "allocated, on a CPU the resident memory of the process, most of which is libraries. DPO processes both answers of "
    f"a sample. {BARS} A configuration without a completed run has its outcome in place of a bar.",
    brief="Time per optimizer step, and the highest memory of any rank (on a CPU mostly libraries). DPO processes "
    "both answers of a sample.",
)
def techniques(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw iteration time (left) and peak memory (right): a group of bars per technique, a bar per number of devices.

    The table has a row per configuration: `series`, its parameters, `repeats`, `iteration_time_s` in seconds and
    `peak_memory_bytes`, both with the bounds of their intervals (`…_low`, `…_high`), and the `outcome`.
    """
    measures = results.frame()
    varying = varied(measures, besides=("technique", "devices", "repeat"))
    technique_parameters: set[str] = set()
    for own_parameters in program_of(measures).own_parameters.values():
        technique_parameters.update(own_parameters)
    # Parameters that belong to one technique are part of the names of groups, all others of the names of series.
    group_parameters = ["technique", *(name for name in varying if name in technique_parameters)]

    def named(rows: pd.DataFrame) -> pd.DataFrame:
        series = configuration_names(measures, rows, besides=tuple(group_parameters))
        groups = [label[:1].upper() + label[1:] for label in labels(rows, group_parameters)]
        return rows.assign(series=series, group=groups)

    data = named(over_repeats(results, ["iteration_time_s", "peak_memory_bytes"], include_lost=True))
    runs = named(completed_of(measures))
    group_height_in = _group_height_in(data)
    height_in = 1.1 + rows_height_in(data["group"].unique(), group_height_in)
    figure, (time_axes, memory_axes) = side_by_side(height_in, share_rows=True)
    time_scale, time_unit = unit_for(data["iteration_time_s"], SECONDS)
    draw_grouped_bars(time_axes, data, runs, "group", "iteration_time_s", time_scale)
    time_axes.set(title="Iteration time", xlabel=f"Time per step ({time_unit})")
    memory_scale, memory_unit = unit_for(data["peak_memory_bytes"], BYTES)
    draw_grouped_bars(memory_axes, data, runs, "group", "peak_memory_bytes", memory_scale)
    memory_axes.set(title="Peak memory per rank", xlabel=f"Peak memory ({memory_unit})")
    legend_below(figure, time_axes)
    other_columns = data.columns.drop(["series", "group"])
    return figure, data[["series", *other_columns]]


def _group_height_in(bars: pd.DataFrame) -> float:
    """Return the height of a group of bars in inches: the more series, the more bars it has."""
    return max(0.34, 0.14 * bars["series"].nunique())


@figure(
    "What does a shorter training cost in device-hours?",
    "Time of the whole training (the same number of samples or tokens for all: the most epochs of the runs) at the "
    "measured throughput, against the hours of all its devices together, without start, tests and saving. A mark is "
    "the geometric mean over the repeats of a configuration, which the CSV names. A line joins the fastest on each "
    "number of devices; a hollow mark is no better in time or in hours than another one of the same training. Whiskers "
    "are 95% confidence intervals: time and hours are uncertain together, so they point at the origin. Another colour "
    "(global batch size, precision, learning rate, technique) is not the same training. Each job has a panel. If the "
    "length of a pass is unknown, the training has a million samples.",
    brief="The whole training at the measured throughput, without start, tests and saving. A line joins the fastest; "
    "a hollow mark is no better in time or in hours than another. Another colour is not the same training.",
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
    word = device_word(results.frame())
    device_counts = [counted(count, word) for count in timed["devices"]]
    trainings_of_rows = [for_figure(changes or "reference training") for changes in timed["changes"]]
    # The names begin with an underscore so that seaborn makes no entry of the legend from them.
    timed = timed.assign(_devices=device_counts, _training=trainings_of_rows)
    counts_in_words = list(timed.sort_values("devices")["_devices"].unique())
    trainings = list(dict.fromkeys(timed["_training"]))
    palette = dict(zip(trainings, colours(len(trainings)), strict=True))
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
        _draw_job(axes, rows, palette, counts_in_words)
        title = f"{job} ({machine})" if machine else job
        axes.set_title(for_figure(title, 45))
    for axes in unused:
        axes.remove()
    legend_below(figure, *panels)
    return figure, data


def _draw_job(axes: Axes, rows: pd.DataFrame, palette: Mapping[str, Colour], counts_in_words: list[str]) -> None:
    """Draw the configurations of one job, with a colour per training and a marker per number of devices.

    Parameters
    ----------
    axes
        The panel to draw in.
    rows
        A row per configuration: `time_s` with its bounds, `device_hours`, `devices`, `device`, and as words of the
        legend `_devices` and `_training`.
    palette
        Colour of each training.
    counts_in_words
        All values of `_devices` in the figure, so that markers are the same in all panels.
    """
    # Imported here because seaborn takes a second to import.
    import seaborn as sns

    scale, unit = unit_for(rows["time_s"], HOURS)
    has_several_colours = len(palette) > 1
    sns.scatterplot(
        rows.assign(time_s=rows["time_s"] * scale),
        x="device_hours",
        y="time_s",
        style="_devices",
        style_order=counts_in_words,
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
        _join_the_fastest(axes, rows_of_training, scale, palette[training])
    # Whiskers determine the ends of the axes up to twice the largest values; longer whiskers are cut.
    longest_whisker = (rows["time_s_high"] / rows["time_s"]).fillna(1.0).max()
    space = 1.1 * min(2.0, longest_whisker)
    axes.set(
        xlim=(0, space * rows["device_hours"].max()),
        ylim=(0, space * scale * rows["time_s"].max()),
        xlabel=f"{DEVICE_HOURS[rows['device'].iloc[0]]} of the training",
        ylabel=f"Time of the training ({unit})",
    )
    _count_coinciding(axes, rows, scale)


def _count_coinciding(axes: Axes, rows: pd.DataFrame, scale: float) -> None:
    """Write beside marks that lie on each other how many they are."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    # A mark takes about this part of a panel.
    mark = 0.02
    places = np.column_stack([rows["device_hours"] / right, rows["time_s"] * scale / top])
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
                xytext=(5, 4),
                textcoords="offset points",
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


def _join_the_fastest(axes: Axes, rows: pd.DataFrame, scale: float, colour: Colour) -> None:
    """Draw a line through the fastest row of each number of devices, and the interval of every row's time.

    Device-hours are time multiplied by devices, so each interval is a part of a line through the origin.
    """
    index_of_fastest = rows.groupby("devices")["time_s"].idxmin()
    fastest = rows.loc[index_of_fastest].sort_values("devices")
    axes.plot(fastest["device_hours"], fastest["time_s"] * scale, color=colour, linewidth=0.9, zorder=2)
    for row in rows.dropna(subset=["time_s_low", "time_s_high"]).itertuples():
        bounds_s = np.array([row.time_s_low, row.time_s_high])
        hours = row.device_hours * bounds_s / row.time_s
        axes.plot(hours, scale * bounds_s, color=colour, linewidth=0.9, alpha=0.6, zorder=1)


@figure(
    "How much energy does an image, or a token, cost?",
    "Energy of all GPUs in the measured steps, from NVML's counter: for vision runs per processed image, for LLM runs "
    f"per token without padding. {POINTS} CPUs, memory, fans and idle GPUs are not metered.",
    brief="All GPUs in the measured steps, by NVML's counter. CPUs, fans and idle GPUs are not metered.",
)
def energy(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the energy of the GPUs per sample, or per token for LLM runs, over the number of devices.

    The table has a row per configuration: `series`, its parameters, `repeats`, and `energy_per_sample_j` or
    `energy_per_token_j` in joules with the bounds of its interval (`…_low`, `…_high`).
    """
    measures = results.frame()
    work = program_of(measures).unit
    if measures[work.energy].isna().all():
        is_on_cpus = set(measures["device"]) == {"cpu"}
        reason = " (a CPU has no meter)" if is_on_cpus else ": the GPUs were not metered"
        raise NothingToShow(f"no energy was recorded{reason}")
    series = series_of(results, [work.energy])
    figure, axes = one_panel(series.height_in)
    scale, unit = unit_for(series.means[work.energy], JOULES)
    title = f"Energy per {work.name}, all GPUs"
    label = f"Energy per {work.name} ({unit})"
    draw_series(axes, series, Quantity(work.energy, title, label, scale))
    legend_below(figure, axes)
    return figure, series.means


@figure(
    "How much memory does training need?",
    "Highest peak of any GPU in the measured steps: allocated (by PyTorch, for tensors), reserved (by PyTorch's "
    "allocator, which keeps what tensors release), and used by everything on the GPU (by NVML, before any test, with "
    "CUDA's context and NCCL's buffers); on CPUs the resident memory of any process, most of it libraries. "
    f"{BARS} A configuration without a completed run has its outcome in place of a bar.",
    brief="Highest peak of any device in the measured steps: of tensors, of PyTorch's allocator, and of all on the "
    "GPU; on CPUs of the process, mostly libraries.",
)
def memory(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the peak memory of the fullest device: a group of bars per configuration, a bar per kind of memory.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, those measures of
    `MEMORY_KINDS` in bytes that any run has, with the bounds of their intervals (`…_low`, `…_high`), and the `outcome`.
    """
    measures = results.frame()
    recorded = [column for column in MEMORY_KINDS if measures[column].notna().any()]
    if not recorded:
        raise NothingToShow("no memory was recorded")
    data = over_repeats(results, recorded, include_lost=True)
    data.insert(0, "configuration", configuration_names(measures, data))
    bars = _by_kind(data, recorded)
    runs = _by_kind(named_runs(measures), recorded)
    figure, axes = one_panel(1.1 + rows_height_in(data["configuration"], _group_height_in(bars)))
    scale, unit = unit_for(bars["memory_bytes"], BYTES)
    draw_grouped_bars(axes, bars, runs, "configuration", "memory_bytes", scale)
    axes.set(title="Peak memory of the fullest device", xlabel=f"Peak memory ({unit})")
    legend_below(figure, axes)
    return figure, data


def _by_kind(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return a table of bars: the rows once for each kind of memory, its name as `series`, its size as `memory_bytes`.

    Rows on CPUs, and rows without a value, are kept for the first of `columns` only.
    """
    parts = []
    for column in columns:
        new_names = {f"{column}{bound}": f"memory_bytes{bound}" for bound in ("", "_low", "_high")}
        part = rows.rename(columns=new_names)
        if column != columns[0]:
            # A run that did not complete has one place for its outcome. A run on CPUs has one kind of memory.
            has_value = part["memory_bytes"].notna()
            is_on_gpu = part["device"] != "cpu"
            part = part[has_value & is_on_gpu]
        is_on_cpu = part["device"] == "cpu"
        series = np.where(is_on_cpu, RESIDENT, MEMORY_KINDS[column])
        parts.append(part.assign(series=series))
    shown = ["configuration", "series", "repeats", "outcome", *(f"memory_bytes{end}" for end in ("", "_low", "_high"))]
    return pd.concat(parts, ignore_index=True).filter(shown)
