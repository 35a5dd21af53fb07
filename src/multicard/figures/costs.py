"""What a result costs besides time: energy, and what recording it adds."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.scaling import over_repeats
from multicard.core.units import JOULES
from multicard.figures.bars import group_axis, whiskers
from multicard.figures.scaling import axis_of_devices, lines_by_devices
from multicard.figures.series import configuration_names, is_llm, labels, varied
from multicard.figures.style import WEAK, WIDTH_IN, NothingToShow, explain_marks, legend_below, unit_for


def energy(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Energy of the cards per sample, or per token of texts, against devices."""
    value, of = ("energy_per_token_j", "token") if is_llm(measures) else ("energy_per_sample_j", "sample")
    if measures[value].isna().all():
        why = " (a CPU has no meter)" if set(measures["device"]) == {"cpu"} else ": the cards were not metered"
        raise NothingToShow(f"no energy was recorded{why}")
    data = over_repeats(measures, [value])
    data.insert(0, "series", labels(data, varied(measures, besides=("devices", "repeat"))))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.2))
    scale, unit = unit_for(data[value], JOULES)
    lines_by_devices(axes, data, value, scale)
    axes.set(title=f"Energy per {of}, all cards together", ylabel=f"Energy per {of} ({unit})")
    axis_of_devices(axes, data)
    legend_below(figure, axes)
    return figure, data


def profiler_overhead(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """How much longer a step is while the profiler records; the mark says whether that is a difference."""
    data = over_repeats(measures, ["profiler_overhead"])
    data.insert(0, "configuration", configuration_names(measures, data))
    data = data[data["profiler_overhead"].notna()].reset_index(drop=True)
    if data.empty:
        raise NothingToShow("no profiled steps were recorded")
    low, high = (data[f"profiler_overhead_{end}"].astype(float) for end in ("low", "high"))
    one = low.isna() | high.isna() | (data["repeats"] < 2)
    none = ~one & (low <= 0) & (high >= 0)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.0 + 0.26 * len(data)))
    axes.axvline(0, color="0.3", linewidth=1.0, zorder=1)
    below, above = whiskers(data, "profiler_overhead", 100.0)
    kinds = {"clear": ~(one | none), "none": none, "unknown": one}
    for verdict, those in kinds.items():
        rows = data[those]
        if len(rows):
            axes.errorbar(
                100 * rows["profiler_overhead"].astype(float),
                rows.index,
                xerr=[below[rows.index], above[rows.index]],
                linestyle="none",
                marker="o",
                markersize=5,
                capsize=3,
                color="#0173b2",
                label="_",
                **WEAK.get(verdict, {}),
            )
    explain_marks(axes, {verdict for verdict, those in kinds.items() if those.any()})
    names = data["configuration"].tolist()
    left, right = axes.get_xlim()
    group_axis(axes, names, horizontal=True)
    axes.set(xlim=(min(left, 0), right), xlabel="Longer step while recording (%)", title="Cost of the profiler")
    legend_below(figure, axes)
    return figure, data
