"""How long training takes: an epoch, and the whole run."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.runs import per_run
from multicard.analysis.scaling.speedup import over_repeats
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import MINUTES, unit_for
from multicard.figures.bars import group_axis, height_of, stacked, whiskers
from multicard.figures.series import configuration_names
from multicard.figures.style import WIDTH_IN, NothingToShow, legend_below

# Colour and hatch of each part of the bars.
LOOK = {
    "measured": ("#0072B2", ""),
    "extrapolated from the measured steps": ("#FFFFFF", "///"),
    "start, tests and profiling": ("#D9D9D9", "..."),
}
TIMES = ["time_per_epoch_s", "training_time_s", "other_time_s"]


def training_time(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time of an epoch and of the whole training, a bar per configuration; extrapolated where epochs were cut short."""
    values = per_run.training_times(tables).dropna(subset=["training_time_s"])
    if values.empty:
        raise NothingToShow("no time of an epoch was recorded")
    measures = tables.with_values(values)
    data = over_repeats(measures, [*TIMES, "cut_short"]).drop(columns=["cut_short_low", "cut_short_high"])
    data.insert(0, "configuration", configuration_names(measures, data))
    data = data[data["training_time_s"].notna()].reset_index(drop=True)
    measured, extrapolated, rest = LOOK
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 1.3 + height_of(len(data))), sharey=True)
    for axes, time in ((left, "time_per_epoch_s"), (right, "training_time_s")):
        cut = data["cut_short"] > 0
        parts = {measured: data[time].where(~cut), extrapolated: data[time].where(cut)}
        if axes is right:
            parts[rest] = data["other_time_s"]
        _bars(axes, data, parts, time)
    left.set_title("Time per epoch")
    right.set_title("Total time")
    legend_below(figure, left, right)
    return figure, data


def _bars(axes: Axes, data: pd.DataFrame, parts: Mapping[str, pd.Series], time: str) -> None:
    """Draw a bar per configuration, of those parts that some have, and the interval of `time`."""
    scale, unit = unit_for(pd.DataFrame(parts).sum(axis=1), MINUTES)
    shown = {name: lengths * scale for name, lengths in parts.items() if lengths.notna().any()}
    stacked(axes, range(len(data)), shown, LOOK, horizontal=True)
    axes.errorbar(
        data[time] * scale,
        range(len(data)),
        xerr=whiskers(data, time, scale),
        linestyle="none",
        capsize=3,
        elinewidth=1,
        ecolor="0.1",
        label="_",
    )
    group_axis(axes, data["configuration"].tolist(), horizontal=True)
    axes.set(xlabel=f"Time ({unit})", xlim=(0, 1.04 * axes.dataLim.xmax))  # parts of no length end the axis at them
