"""Figures of steps and epochs: phases and parts of a step, distribution of step times, loss, accuracy over time."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from multicard.answers.comparison.comparisons import quantiles_of_steps, varied
from multicard.answers.phases import mean_phases
from multicard.answers.scaling.speedup_tables import over_repeats
from multicard.core.units import MINUTES, PERCENT, SECONDS, number, unit_for
from multicard.figures import meanings
from multicard.figures.bars import axis_label, draw_grouped_bars, draw_stacked_bars, name_rows, rows_height_in
from multicard.figures.catalog import BARS, figure
from multicard.figures.meanings import Fill, Fills
from multicard.figures.points import LINE_STYLES, MARKERS
from multicard.figures.series import (
    completed_of,
    configuration_names,
    labels,
    named_runs,
    setting_label,
)
from multicard.figures.style import (
    HATCHES,
    NothingToShow,
    colours,
    is_column,
    legend_below,
    one_panel,
    side_by_side,
    width_in,
)
from multicard.figures.timeline import GPU_FILLS
from multicard.programs import program_of
from multicard.results import per_run
from multicard.results.breakdown import StepPart
from multicard.results.results import Results

# The fill of each part of `step_breakdown`: those of `answers.phases.PARTS`.
PHASE_FILLS: Fills = {
    "data": Fill(meanings.DATA, ""),
    "transfer": Fill(meanings.MEMORY, "///"),
    "forward": Fill(meanings.FORWARD, "..."),
    "backward": Fill(meanings.COMPUTE, "\\\\\\"),
    "optimizer": Fill(meanings.OPTIMIZER, "xxx"),
    "evaluation": Fill(meanings.EVALUATION, ""),
    "stalls": Fill(meanings.STALLS, HATCHES[3]),
    "other": Fill(meanings.OTHER, "///"),
}
# The fill of each `StepPart`.
STEP_PART_FILLS: Fills = {
    "compute": GPU_FILLS["compute"],
    "compute or communication": Fill(GPU_FILLS["compute"].colour, HATCHES[2]),
    "exposed communication": GPU_FILLS["exposed communication"],
    "waiting for other ranks": Fill(meanings.WAITING, "ooo"),
    "memory operations": GPU_FILLS["exposed memory operations"],
    "CUDA graphs": GPU_FILLS["CUDA graphs"],
    "launch overhead": GPU_FILLS["idle (launching)"],
    "memory allocation": GPU_FILLS["idle (allocating)"],
    "loading code": GPU_FILLS["idle (loading code)"],
    "synchronization": GPU_FILLS["idle (synchronizing)"],
    "host without GPU calls": GPU_FILLS["idle (host in no call)"],
    "idle within graphs": GPU_FILLS["idle (within a graph)"],
    "queued on the GPU": GPU_FILLS["idle (queued)"],
    "data loading": Fill(PHASE_FILLS["data"].colour, HATCHES[1]),
    "evaluation": Fill(PHASE_FILLS["evaluation"].colour, HATCHES[2]),
    "stalls": Fill(meanings.STALLS, HATCHES[3]),
    "other": GPU_FILLS["idle (unknown)"],
}


class Look(NamedTuple):
    """The look of a line: its colour, its style as Matplotlib takes it, and its marker (empty for none)."""

    colour: str
    dash: str | tuple[float, tuple[float, float]]
    marker: str


# A part or a phase is drawn only if its share of the step is at least this in some configuration.
LEAST_SHARE = 1e-3


@figure(
    "Where does the time of a step go?",
    "The length of a bar is the iteration time: elapsed time per optimizer step, geometric mean over repeats, with its "
    "95% confidence interval in brackets (by the scatter of all configurations of the figure; a single repeat has "
    "none). It is divided into the phases, evaluation inside a pass and stalls, as in answers: data and evaluation are "
    "those of the rank that waited for data and evaluated longest in each step; the other phases are means over ranks, "
    "less the time for which they wait for that rank, by each rank's own clock. What is in no phase is other: also the "
    "time between steps, and by how much longer the slowest rank takes. Parts below 0.1% of all steps are not drawn. "
    "With several ranks the backward phase includes gradient synchronization. On a GPU a phase lasts from when the "
    "device reaches its beginning until it reaches its end, on a CPU from call to call; the figure utilization shows "
    "what a GPU does in that time.",
    brief="A bar is the iteration time, its 95% CI in brackets, divided into phases; data is the wait of the rank that "
    "waited longest. With several ranks, backward includes gradient synchronization.",
)
def step_breakdown(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the iteration time as a bar per configuration, divided into the phases of a step.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, `iteration_time_s` in
    seconds with the bounds of its interval (`…_low`, `…_high`), and the seconds of each phase (`data_s`, `forward_s`,
    …), which add up to it; a phase is empty where it was not recorded.
    """
    data = mean_phases(results)
    data.insert(0, "configuration", configuration_names(results.frame(), data))
    times_s = data[[f"{phase}_s" for phase in PHASE_FILLS]]
    if not times_s.fillna(0.0).any(axis=None):
        raise NothingToShow("no phases of steps were recorded")
    least_s = LEAST_SHARE * times_s.sum(axis=1)
    shown = [phase for phase in PHASE_FILLS if times_s[f"{phase}_s"].ge(least_s).any()]
    figure, axes = one_panel(1.3 + rows_height_in(data["configuration"]))
    draw_stacked_bars(
        axes,
        data["configuration"].tolist(),
        {phase: times_s[f"{phase}_s"] for phase in shown},
        PHASE_FILLS,
        title="Phases of a step",
        label="Time per step",
        units=SECONDS,
        repeats=data["repeats"],
        totals=data[["iteration_time_s", "iteration_time_s_low", "iteration_time_s_high"]].set_axis(
            ["value", "low", "high"], axis="columns"
        ),
    )
    legend_below(figure, axes)
    return figure, data


@figure(
    "How far is training from the peak of the device, and where does the rest go?",
    "Where the step goes: means over repeats, which add up. The wait for data, evaluation and stalls are from the "
    "phases of the measured steps. On GPUs the trace of the profiled steps divides the rest; otherwise the phases do, "
    "which separate compute from communication on one device only. Communication is exposed while the GPU computes "
    "nothing. If operations were counted and the peak of the device is known, another panel shows the model FLOP "
    "utilization: the operations of the model in a measured step over those that the device could have computed. "
    f"{BARS} A GPU that computes all the time may be far from its peak: small or memory-bound kernels count as "
    "computing.",
    brief="Parts of a step, which add up. A GPU that computes all the time may still be far from its peak.",
    profiled=True,
)
def utilization(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the parts of a step of each configuration and, if known, the model FLOP utilization in a panel on the left.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, `mfu` with the bounds
    of its interval (`mfu_low`, `mfu_high`), and a column for each part with its share of the step; all are ratios.
    """
    measures = results.frame()
    columns = [part.column for part in StepPart]
    shares = results.mean_parts(columns)[columns].rename(columns={part.column: part.value for part in StepPart})
    # If some parts of a configuration's step are known, the others took no time.
    shares = shares.fillna(0.0).where(shares.notna().any(axis=1), axis=0)
    data = over_repeats(results, ["mfu"]).join(shares)
    if data[["mfu", *StepPart]].isna().all(axis=None):
        raise NothingToShow("neither operations nor parts of steps are known")
    data.insert(0, "configuration", configuration_names(measures, data))
    has_mfu = data["mfu"].notna().any()
    width_ratios = (2, 3) if has_mfu else (1,)
    height_in = 1.3 + rows_height_in(data["configuration"])
    figure, panels = side_by_side(height_in, len(width_ratios), share_rows=True, width_ratios=width_ratios)
    if has_mfu:
        _draw_mfu(panels[0], data, named_runs(measures))
    axes = panels[-1]
    draw_stacked_bars(
        axes,
        data["configuration"].tolist(),
        {part: data[part] for part in STEP_PART_FILLS if part in data and (data[part] >= LEAST_SHARE).any()},
        STEP_PART_FILLS,
        title="Where the step goes",
        label="Share of the step",
        units=PERCENT,
        repeats=data["repeats"],
    )
    legend_below(figure, *panels)
    return figure, data


def _draw_mfu(axes: Axes, data: pd.DataFrame, runs: pd.DataFrame) -> None:
    """Draw the model FLOP utilization in per cent, a bar per configuration. `runs`: the repeats, drawn as dots."""
    # All bars are one series. Its name "_" makes no entry of the legend.
    bars = data.assign(series="_", outcome="completed")
    draw_grouped_bars(axes, bars, runs.assign(series="_"), "configuration", "mfu", 100.0)
    axes.set(title="Model FLOP utilization", xlabel="Of the peak (%)")


@figure(
    "How variable are step times?",
    "Durations of the measured steps (each by its slowest rank), all repeats pooled. The box spans the middle half, "
    "with a line at the median; whiskers reach the 1st and 99th percentiles, with a dot for each step beyond. A "
    "diamond is the iteration time: elapsed time over steps, geometric mean over repeats. Throughput follows from "
    "that, not from the median; it may lie outside of the box. The axis does not begin at zero.",
    brief="Measured steps of all repeats, each by its slowest rank. Box: middle half and median; whiskers: 1st to "
    "99th percentile; diamond: elapsed time over steps.",
)
def step_times(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the distribution of the times of measured steps: a box per configuration, all its repeats pooled.

    The table has a row per configuration: `configuration` (its name), the number of `steps`, and in seconds
    `lowest_s`, the quantiles `p1_s`, `p25_s`, `median_s`, `p75_s` and `p99_s`, `highest_s`, and `iteration_time_s`, the
    geometric mean over repeats of elapsed time over steps.
    """
    runs = named_runs(results.frame())
    steps = per_run.measured_steps(results).merge(runs[["run", "configuration"]], on="run").dropna()
    if steps.empty:
        raise NothingToShow("no step times were recorded")
    data = quantiles_of_steps(steps)
    means = over_repeats(results, ["iteration_time_s"])
    names_of_means = configuration_names(results.frame(), means)
    iteration_times_s = dict(zip(names_of_means, means["iteration_time_s"], strict=True))
    data["iteration_time_s"] = data["configuration"].map(iteration_times_s).astype(float)
    scale, unit = unit_for(steps["duration_s"], SECONDS)
    times = dict(list((scale * steps["duration_s"]).groupby(steps["configuration"])))
    names = data["configuration"].tolist()
    figure, axes = one_panel(0.9 + rows_height_in(names, 0.32))
    axes.boxplot(
        [times[name] for name in names],
        positions=range(len(names)),
        orientation="horizontal",
        whis=(1, 99),
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#9ecae1"},
        medianprops={"color": "black", "linewidth": 1.6},
        # Pale, so that many steps beside each other are no black bar.
        flierprops={"marker": ".", "markersize": 3, "alpha": 0.35, "markerfacecolor": "black", "markeredgewidth": 0},
    )
    axes.plot(
        scale * data["iteration_time_s"],
        range(len(names)),
        linestyle="none",
        marker="D",
        markersize=4.5,
        markerfacecolor="white",
        markeredgecolor="black",
        zorder=5,
        label="iteration time (elapsed / steps)",
    )
    name_rows(axes, names)
    axes.set(xlabel=axis_label(f"Time of a measured step ({unit})"), title="Step times")
    legend_below(figure, axes)
    return figure, data


@figure(
    "How long does it take to reach a given accuracy?",
    "Test accuracy after each epoch over the training time up to it, evaluation excluded; one line per run. Colours "
    "are settings, and dashes numbers of devices. The dotted line is the papers' target.",
    brief="After each epoch, over training time without evaluation; a line per run. Dotted: the papers' target.",
)
def accuracy(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the test accuracy over training time, a line per run; runs of one configuration share a colour and a name.

    The table has a row per run and epoch: `series` (the configuration), `run`, `epoch`, `time_s` (seconds of training
    up to the end of the epoch, without evaluation), and `test_accuracy`, a ratio.
    """
    epochs = per_run.accuracy_over_time(results).dropna(subset=["time_s", "test_accuracy"])
    data = _with_series(epochs, results.frame())
    if data.empty:
        raise NothingToShow("no test accuracy was recorded")
    scale, unit = unit_for(data["time_s"], MINUTES)
    figure, axes = one_panel(3.2)
    shown = data.assign(time=scale * data["time_s"], accuracy=100 * data["test_accuracy"])
    _draw_lines_of_runs(axes, shown, "time", "accuracy", _looks_of_configurations(data, results.frame()))
    target = program_of(results.frame()).measures.definitions["test_accuracy"].target
    if target is not None:
        axes.axhline(100 * target, color="0.4", linestyle=(0, (1, 1.5)), label=f"target: {target:.0%}", zorder=1)
    axes.set(xlabel=f"Training time, without evaluation ({unit})", ylabel="Test accuracy (%)", xlim=(0, None))
    axes.set_title("Test accuracy over time")
    legend_below(figure, axes)
    return figure, data


@figure(
    "How does the loss fall?",
    "Training loss of every optimizer step, warm-up and profiled steps included, over steps on a logarithmic axis: "
    "one line per run, mean over ranks; the repeats of a configuration share a colour and a style. Dashes of "
    "different configurations alternate, so that coinciding lines are all visible. In a long run each point is the "
    "mean of neighbouring steps. For LLM runs each technique has a panel, or else each data set, since their losses "
    "cannot be compared.",
    brief="Mean over ranks of each optimizer step; in a long run, of neighbouring steps. A line per run.",
)
def loss(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the training loss over optimizer steps, a line per run, in a panel per value of a parameter it depends on.

    The table has a row per run and step; in a long run a row is the mean of neighbouring steps. Its columns are
    `series` (the configuration), `run`, `step` and `loss`, the mean over ranks. If there is a panel for each value of a
    parameter, such as `technique`, that parameter is the first column.
    """
    measures = results.frame()
    panel_parameter = _parameter_of_loss_panels(measures)
    steps = per_run.over_steps(results, ["loss"]).dropna(subset=["loss"])
    data = _with_series(steps, measures, besides=(panel_parameter,) if panel_parameter else ())
    if data.empty:
        raise NothingToShow("no losses were recorded")
    panels = {"Training loss": data}
    if panel_parameter:
        data.insert(0, panel_parameter, data["run"].map(measures.set_index("run")[panel_parameter]))
        panels = {
            f"Training loss, {setting_label(panel_parameter, value)}": rows
            for value, rows in data.groupby(panel_parameter, sort=False)
        }
    column_count = 1 if is_column() else min(len(panels), 2)
    row_count = math.ceil(len(panels) / column_count)
    looks = _alternating_looks(list(dict.fromkeys(data["series"])))
    figure, grid = plt.subplots(
        row_count, column_count, figsize=(width_in(), 0.8 + 2.4 * row_count), squeeze=False, sharex=True
    )
    used, unused = grid.flat[: len(panels)], grid.flat[len(panels) :]
    for axes, (title, rows) in zip(used, panels.items(), strict=True):
        _draw_lines_of_runs(axes, rows, "step", "loss", looks)
        axes.set(title=title, xlabel="Optimizer step", ylabel="Loss", ylim=(0, None), xscale="log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: number(step)))
        axes.tick_params(labelbottom=True)
    for axes in unused:
        axes.remove()
    legend_below(figure, *used)
    return figure, data


def _parameter_of_loss_panels(measures: pd.DataFrame) -> str | None:
    """Return the parameter whose values have a panel each, because losses for different values cannot be compared.

    It is the first that varies of those on which the loss of the program depends; None if none does.
    """
    varying = varied(measures, besides=())
    return next((name for name in program_of(measures).comparison.loss_depends_on if name in varying), None)


def _with_series(rows: pd.DataFrame, measures: pd.DataFrame, besides: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return the rows of completed runs, in the order of the runs, with the name of the configuration as `series`.

    `besides`: parameters that the names leave out.
    """
    completed = completed_of(measures)
    names = configuration_names(measures, completed, besides)
    name_by_run = dict(zip(completed["run"], names, strict=True))
    runs = list(name_by_run)
    rows = rows[rows["run"].isin(runs)].sort_values("run", key=lambda run: run.map(runs.index), kind="stable")
    rows.insert(0, "series", rows["run"].map(name_by_run))
    return rows


def _looks_of_configurations(data: pd.DataFrame, measures: pd.DataFrame) -> dict[str, Look]:
    """Return the look of each series: a colour for its settings, a dash and a marker for its number of devices."""
    parameters = measures.set_index("run").loc[data["run"]].reset_index()
    varying = varied(measures, besides=("devices", "repeat"))
    settings = labels(parameters, varying) if varying else [""] * len(data)
    setting_by_series = dict(zip(data["series"], settings, strict=True))
    devices_by_series = dict(zip(data["series"], parameters["devices"], strict=True))
    coloured = list(dict.fromkeys(settings))
    if len(coloured) == 1:
        # Series differ in their number of devices alone, so a colour for each of them distinguishes them best.
        coloured = list(setting_by_series)
        setting_by_series = {series: series for series in coloured}
    colour_by_setting = dict(zip(coloured, colours(len(coloured)), strict=True))
    device_counts = sorted(set(devices_by_series.values()))
    looks = {}
    for series, setting in setting_by_series.items():
        position = device_counts.index(devices_by_series[series])
        dash = LINE_STYLES[position % len(LINE_STYLES)]
        marker = MARKERS[position % len(MARKERS)]
        looks[series] = Look(colour_by_setting[setting], dash, marker)
    return looks


def _alternating_looks(names: list[str]) -> dict[str, Look]:
    """Return a look for each series whose dashes fall into the gaps of the others; the first one is a whole line."""
    dash = 3.5
    # Then each of up to eight coinciding lines is seen for an equal part.
    gap = min(7, max(1, len(names) - 1)) * dash
    looks = {}
    for place, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        style = (dash * (place - 1), (dash, gap)) if place else "-"
        looks[name] = Look(colour, style, "")
    return looks


def _draw_lines_of_runs(axes: Axes, data: pd.DataFrame, x: str, y: str, looks: Mapping[str, Look]) -> None:
    """Draw a line per run from the columns `x` and `y`; runs of one series share a look.

    `looks`: the look of each series of all panels, so that a series looks the same in all panels.
    """
    for series, look in looks.items():
        rows_of_series = data[data["series"] == series]
        for _, rows in rows_of_series.groupby("run", sort=False):
            axes.plot(
                rows[x], rows[y], color=look.colour, linestyle=look.dash, marker=look.marker, markersize=4, label="_"
            )
        # One entry of the legend for all runs of a series. Of a dash with a long gap it would show a dot, or nothing.
        dash = look.dash if isinstance(look.dash, str) else "-"
        axes.plot([], [], color=look.colour, linestyle=dash, marker=look.marker, markersize=4, label=series)
