"""What one value of a parameter gains over another, all else being equal; and what profiling costs."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.ablation import NO_LOADING, as_table, costs
from multicard.analysis.comparison.comparisons import as_used, gains, overheads, varied
from multicard.analysis.evidence import evidence_of
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.text import counted, for_figure
from multicard.figures.bars import height_of
from multicard.figures.catalog import HOLLOW, RATIOS, figure
from multicard.figures.points import draw_series, height_for
from multicard.figures.series import completed_of, device_word, labels, unit
from multicard.figures.style import WIDTH_IN, NothingToShow, colours, legend_below, ordered_colours

GAIN = (
    "Speed gain: time per step without the setting divided by time per step with it, minus 1, all other parameters "
    f"being equal. Marks are geometric means of the ratios of repeats, small dots these. Whiskers {RATIOS}. {HOLLOW}"
)


@figure(
    "What does a lower precision gain, for which image sizes and how many devices?",
    f"{GAIN} It is a gain only where accuracy is preserved (figure accuracy).",
)
def gain_precision(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of each lower precision over the highest; see `_draw_gain`."""
    return _draw_gain(tables, "precision")


@figure(
    "What does pinned memory gain, and does the gain shrink with more devices?",
    f"{GAIN} On a CPU nothing is pinned and the gain is zero.",
)
def gain_pin_memory(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of pinned over pageable memory; see `_draw_gain`."""
    return _draw_gain(tables, "pin_memory")


@figure(
    "What does NVIDIA DALI gain over PyTorch's DataLoader?",
    f"{GAIN} Where the GPU is always busy, a faster loader cannot help. Of images in arrays (stored_size: null) "
    "nothing is decoded, so they do not show what DALI can do.",
)
def gain_loader(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of DALI over the DataLoader; see `_draw_gain`."""
    return _draw_gain(tables, "loader")


@figure("What does the memory layout NHWC gain over NCHW?", GAIN)
def gain_layout(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of NHWC over NCHW; see `_draw_gain`."""
    return _draw_gain(tables, "layout")


@figure(
    "What does binding each rank to the CPUs next to its GPU gain?",
    f"{GAIN} A machine with a single NUMA node has nothing to bind to.",
)
def gain_binding(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of binding ranks to CPUs; see `_draw_gain`."""
    return _draw_gain(tables, "binding")


@figure("What do PyTorch's own performance settings gain over the papers' settings?", GAIN)
def gain_preset(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of the tuned settings over the papers'; see `_draw_gain`."""
    return _draw_gain(tables, "preset")


@figure(
    "Is a run slower because it has a profiler, before this records anything?",
    f"{GAIN} The setting is the profiler that was used; the steps are those of the measured window, in which it does "
    "not record, so a gain below zero is its cost.",
)
def gain_profiler(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw the gain of each profiler over none; see `_draw_gain`."""
    return _draw_gain(tables, "profiler")


def _draw_gain(tables: ScenarioTables, parameter: str) -> tuple[Figure, pd.DataFrame]:
    """Speed gain per number of devices: a panel per compared value, a series per combination of what else varies."""
    measures = as_used(tables.measures, parameter)
    data = gains(measures, parameter)
    if data.empty:
        name = parameter.replace("_", " ")
        raise NothingToShow(f"no two completed runs with step times differ in {name} alone")
    others = varied(measures, besides=(parameter, "devices", "repeat"))
    base = data["base"].iloc[0]
    runs = _of_repeats(measures, parameter, base, [*others, "devices", "repeat"])
    alone = counted(data["devices"].iloc[0], device_word(measures)) if data["devices"].nunique() == 1 else "gain"

    def named(rows: pd.DataFrame) -> list[str]:
        return [for_figure(name) for name in labels(rows, others)] if others else [alone] * len(rows)

    data.insert(0, "series", named(data))
    names = list(dict.fromkeys(data["series"]))
    palette = dict(zip(names, (ordered_colours if others == ["image_size"] else colours)(len(names)), strict=True))
    shown = data.assign(device=measures["device"].iloc[0])
    over_devices, values = data["devices"].nunique() > 1, list(dict.fromkeys(data["value"]))
    figure, panels = plt.subplots(
        1, len(values), figsize=(WIDTH_IN, height_for(data)), squeeze=False, sharey=True, sharex=True
    )
    limits = []
    for axes, value in zip(panels[0], values, strict=True):
        title = f"Gain of {unit(parameter, value)} over {unit(parameter, base)}"
        of = runs[runs[parameter] == value].assign(series=named)
        own = shown[shown["value"] == value]
        draw_series(axes, own, "gain", title, "Speed gain (%)", 100.0, of, palette, around_zero=True)
        limits += axes.get_ylim() if over_devices else axes.get_xlim()
    (panels[0][0].set_ylim if over_devices else panels[0][0].set_xlim)(min(limits), max(limits))
    legend_below(figure, *panels[0])
    return figure, data


def _of_repeats(measures: pd.DataFrame, parameter: str, base: object, by: list[str]) -> pd.DataFrame:
    """The completed runs that have a partner with the base value in their repeat, and their `gain` over it."""
    completed = completed_of(measures)
    bases = completed.loc[completed[parameter] == base, [*by, "iteration_time_s"]]
    pairs = completed.merge(bases, on=by, suffixes=("", "_base"))
    return pairs.assign(gain=pairs["iteration_time_s_base"] / pairs["iteration_time_s"] - 1)


@figure(
    "What does each part of the step cost?",
    "Part of the time that is saved by runs without it: without loading (the batches of the warm-up come again and "
    "again), without communication (ranks exchange no gradients), and without both, which may save more or less than "
    "the two: parts overlap, or compete. Without the host's work (a step is replayed as a CUDA graph) there is no "
    f"loading either, so it is part of the time without loading. Such runs train nothing. Whiskers {RATIOS}.",
)
def ablation(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Share of the time that each part costs, by runs without it."""
    data = as_table(costs(evidence_of(tables)))
    if data.empty:
        raise NothingToShow("no completed run went without a part of its step beside one that had all")
    several = data["configuration"].nunique() > 1
    named = data["without"].mask(data["compared_with"] == NO_LOADING, "the host's work, of the time without loading")
    named += ": " + data["configuration"] if several else ""
    shown = data.assign(series=named.map(for_figure))
    by_count = list(shown.groupby("devices"))
    rows = [own["series"].nunique() for _, own in by_count]
    size = (WIDTH_IN, 0.6 + sum(0.6 + height_of(each, 0.3) for each in rows))
    figure, panels = plt.subplots(len(rows), 1, figsize=size, squeeze=False, sharex=True, height_ratios=rows)
    limits = []
    for axes, (count, own) in zip(panels[:, 0], by_count, strict=True):
        title = counted(count, device_word(shown))
        draw_series(axes, own, "cost_share", title, "", 100.0, around_zero=True)
        limits += axes.get_xlim()
    axes.set(xlim=(min(limits), max(limits)), xlabel="Saved without it (% of the time)")
    return figure, data


@figure(
    "How much does profiling slow a step down?",
    "How much longer a step takes in the profiled window than in the measured one. Marks are geometric means over "
    f"repeats, small dots single repeats. Whiskers {RATIOS}. {HOLLOW} Numbers from the trace (shares, CUDA calls, "
    "kernels, transfers) include this overhead; all other times come from steps during which no profiler records.",
    profiled=True,
)
def profiler_overhead(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """How much longer a step is while the profiler records."""
    measures = tables.measures
    data = overheads(measures)
    if data.empty:
        raise NothingToShow("no profiled steps were recorded")
    names = varied(measures, besides=("devices", "repeat"))
    data.insert(0, "series", labels(data, names))
    runs = completed_of(measures).assign(series=lambda rows: labels(rows, names))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, height_for(data)))
    label = "Profiling overhead (%)"
    draw_series(axes, data, "profiler_overhead", "Profiling overhead", label, 100.0, runs, around_zero=True)
    legend_below(figure, axes)
    return figure, data
