"""Figures of gains of one value of a parameter over another, and of costs of parts of a step and of profiling.

Gains and costs are relative differences: zero means no difference. Marks that do not differ significantly from zero are
hollow.
"""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.answers.ablation import as_table, costs
from multicard.answers.comparison.comparisons import as_used, gains, overheads, varied
from multicard.core.text import counted, for_figure
from multicard.figures.bars import rows_height_in
from multicard.figures.catalog import HOLLOW, RATIOS, figure
from multicard.figures.points import Quantity, Series, draw_series, set_value_limits, value_limits
from multicard.figures.series import completed_of, device_word, labels, setting_label
from multicard.figures.style import (
    NothingToShow,
    colours,
    is_column,
    legend_below,
    one_panel,
    ordered_colours,
    width_in,
)
from multicard.results.results import Results

GAIN = (
    "Speed gain: time per step without the setting over time with it, minus 1, everything else equal. Marks are "
    f"geometric means of the ratios of repeats, small dots are these ratios. Whiskers {RATIOS}. {HOLLOW}"
)
BRIEF_GAIN = "Time per step without the setting over time with it, minus 1, everything else equal."


@figure(
    "What does a lower precision gain, for which image sizes and how many devices?",
    f"{GAIN} It is a gain only where accuracy is preserved (figure accuracy).",
    brief=f"{BRIEF_GAIN} It is a gain only where accuracy is preserved.",
)
def gain_precision(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of each lower precision over the highest; see `_draw_gain`."""
    return _draw_gain(results, "precision")


@figure(
    "What does pinned memory gain, and does the gain shrink with more devices?",
    f"{GAIN} On a CPU nothing is pinned and the gain is zero.",
    brief=f"{BRIEF_GAIN} On a CPU nothing is pinned.",
)
def gain_pin_memory(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of pinned over pageable memory; see `_draw_gain`."""
    return _draw_gain(results, "pin_memory")


@figure(
    "What does NVIDIA DALI gain over PyTorch's DataLoader?",
    f"{GAIN} A faster loader cannot help a GPU that is always busy. Images in arrays (stored_size: null) are not "
    "decoded, so they do not show what DALI can do.",
    brief=f"{BRIEF_GAIN} Images in arrays are not decoded, so they do not show what DALI can do.",
)
def gain_loader(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of DALI over the DataLoader; see `_draw_gain`."""
    return _draw_gain(results, "loader")


@figure("What does the memory layout NHWC gain over NCHW?", GAIN, brief=BRIEF_GAIN)
def gain_layout(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of NHWC over NCHW; see `_draw_gain`."""
    return _draw_gain(results, "layout")


@figure(
    "What does binding each rank to the CPUs next to its GPU gain?",
    f"{GAIN} A machine with a single NUMA node has nothing to bind to.",
    brief=f"{BRIEF_GAIN} A machine with a single NUMA node has nothing to bind to.",
)
def gain_binding(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of binding ranks to CPUs; see `_draw_gain`."""
    return _draw_gain(results, "binding")


@figure("What do PyTorch's own performance settings gain over the papers' settings?", GAIN, brief=BRIEF_GAIN)
def gain_preset(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of the tuned settings over the papers'; see `_draw_gain`."""
    return _draw_gain(results, "preset")


@figure(
    "Does a profiler slow a run down before it records?",
    f"{GAIN} The setting is the profiler; it does not record in the measured steps, so a gain below zero is its cost.",
    brief=f"{BRIEF_GAIN} The profiler does not record in these steps; a gain below zero is its cost.",
)
def gain_profiler(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of each profiler over none; see `_draw_gain`."""
    return _draw_gain(results, "profiler")


def _draw_gain(results: Results, parameter: str) -> tuple[Figure, pd.DataFrame]:
    """Draw the speed gain over the number of devices: a panel for each value of the parameter except the base value.

    A panel has a series for each combination of the other parameters that vary.

    The table has a row per compared value and configuration of the other parameters: `series`, the `base` value, the
    compared `value`, the other parameters that vary, `devices`, the number of `repeats` compared, the ratio `gain` (0.1
    is a tenth faster) with the bounds of its interval (`gain_low`, `gain_high`), and the `verdict` (more, less, none or
    unknown).
    """
    measures = as_used(results, parameter).frame()
    data = gains(results, parameter)
    if data.empty:
        name = parameter.replace("_", " ")
        raise NothingToShow(f"no two completed runs with step times differ in {name} alone")
    base = data["base"].iloc[0]
    varying = varied(measures, besides=(parameter, "devices", "repeat"))
    runs = _gains_of_repeats(measures, parameter, base, [*varying, "devices", "repeat"])
    if varying:
        data.insert(0, "series", _literal_labels(data, varying))
        runs["series"] = _literal_labels(runs, varying)
    else:
        # There is one series. Its name is shown only for a single number of devices, as the name of its row.
        has_one_count = data["devices"].nunique() == 1
        only_name = counted(data["devices"].iloc[0], device_word(measures)) if has_one_count else "gain"
        data.insert(0, "series", only_name)
        runs["series"] = only_name
    names = list(dict.fromkeys(data["series"]))
    colours_of_names = ordered_colours(len(names)) if varying == ["image_size"] else colours(len(names))
    palette = dict(zip(names, colours_of_names, strict=True))
    shown = data.assign(device=measures["device"].iloc[0])
    values = list(dict.fromkeys(data["value"]))
    all_series = Series(shown)
    row_count, column_count = (len(values), 1) if is_column() else (1, len(values))
    figure, panels = plt.subplots(
        row_count,
        column_count,
        figsize=(width_in(), row_count * all_series.height_in),
        squeeze=False,
        sharey=True,
        sharex=True,
    )
    # Panels share their axes: drawing a panel changes the limits of all. So the limits of each panel are collected, and
    # the outermost ones are set at the end.
    limits: list[float] = []
    for axes, value in zip(panels.flat, values, strict=True):
        title = f"Gain of {setting_label(parameter, value)} over {setting_label(parameter, base)}"
        series = Series(shown[shown["value"] == value], runs[runs[parameter] == value], palette)
        draw_series(axes, series, Quantity("gain", title, "Speed gain (%)", 100.0, has_zero_line=True))
        limits += value_limits(axes, all_series)
    set_value_limits(axes, all_series, min(limits), max(limits))
    legend_below(figure, *panels.flat)
    return figure, data


def _literal_labels(rows: pd.DataFrame, varying: list[str]) -> list[str]:
    """Return a label for each row from the varying parameters, escaped so that no dollar starts a formula."""
    return [for_figure(label) for label in labels(rows, varying)]


def _gains_of_repeats(measures: pd.DataFrame, parameter: str, base: object, equal: list[str]) -> pd.DataFrame:
    """Return the completed runs with their `gain` over the run that has the base value and is equal in all else.

    `equal`: columns in which the two runs agree. Runs without such a partner are left out.
    """
    completed = completed_of(measures)
    base_runs = completed.loc[completed[parameter] == base, [*equal, "iteration_time_s"]]
    pairs = completed.merge(base_runs, on=equal, suffixes=("", "_base"))
    return pairs.assign(gain=pairs["iteration_time_s_base"] / pairs["iteration_time_s"] - 1)


@figure(
    "What does each part of the step cost?",
    "Share of the time that a run saves without a part: without loading (it repeats the batches of the warm-up), "
    "without communication (ranks exchange no gradients), and without both, which may save more or less than the sum "
    f"because parts overlap or compete. Such runs train nothing. Whiskers {RATIOS}.",
    brief="Share of the time that a run saves without a part; such runs train nothing. Parts overlap or compete, so "
    "the savings do not add up.",
)
def ablation(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of the time that each part of a step costs: a panel per number of devices, a row per part.

    The table has a row per configuration and part: the `configuration`, its `device` and `devices`, the part that runs
    were `without`, `repeats`, and the ratios `speedup_without` and `cost_share` with the bounds of their intervals
    (`…_low`, `…_high`).
    """
    data = as_table(costs(results))
    if data.empty:
        raise NothingToShow("no completed run went without a part of its step beside one that had all")
    parts = data["without"]
    if data["configuration"].nunique() > 1:
        parts += ": " + data["configuration"]
    shown = data.assign(series=parts.map(for_figure))
    series_by_count = {count: Series(rows) for count, rows in shown.groupby("devices")}
    heights_in = [rows_height_in(series.names, 0.3) for series in series_by_count.values()]
    height = 0.6 + sum(0.6 + rows_in for rows_in in heights_in)
    figure, panels = plt.subplots(
        len(heights_in), 1, figsize=(width_in(), height), squeeze=False, sharex=True, height_ratios=heights_in
    )
    # Panels share the axis of values: drawing a panel changes the limits of all. So the limits of each panel are
    # collected, and the outermost ones are set at the end.
    limits: list[float] = []
    for axes, (count, series) in zip(panels.flat, series_by_count.items(), strict=True):
        title = counted(count, device_word(shown))
        draw_series(axes, series, Quantity("cost_share", title, "", 100.0, has_zero_line=True))
        limits += value_limits(axes, series)
    set_value_limits(axes, series, min(limits), max(limits))
    axes.set_xlabel("Saved without it (% of the time)")
    return figure, data


@figure(
    "How much does profiling slow a step down?",
    "How much longer a step takes in the profiled window than in the measured one. Marks are geometric means over "
    f"repeats, small dots are single repeats. Whiskers {RATIOS}. {HOLLOW} Numbers from the trace (shares, CUDA calls, "
    "kernels, transfers) include this overhead; all other times come from steps without a recording profiler.",
    brief="Steps while the profiler records against measured steps. Only numbers from the trace include this.",
    profiled=True,
)
def profiler_overhead(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw how much longer a step takes while the profiler records, over the number of devices.

    The table has a row per configuration: `series`, its parameters, `repeats`, the ratio `profiler_overhead` (0.1 is a
    tenth longer) with the bounds of its interval (`…_low`, `…_high`), and the `verdict` (more, less, none or unknown).
    """
    measures = results.frame()
    data = overheads(results)
    if data.empty:
        raise NothingToShow("no profiled steps were recorded")
    varying = varied(measures, besides=("devices", "repeat"))
    data.insert(0, "series", labels(data, varying))
    runs = completed_of(measures)
    series = Series(data, runs.assign(series=labels(runs, varying)))
    figure, axes = one_panel(series.height_in)
    overhead = Quantity("profiler_overhead", "Profiling overhead", "Profiling overhead (%)", 100.0, has_zero_line=True)
    draw_series(axes, series, overhead)
    legend_below(figure, axes)
    return figure, data
