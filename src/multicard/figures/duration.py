"""How long training takes: an epoch, and the whole run."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.runs import per_run
from multicard.analysis.scaling.speedup import over_repeats
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import MINUTES, unit_for
from multicard.figures.bars import height_of, row_repeats, stacked_rows
from multicard.figures.series import configuration_names, named_runs
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
    runs = named_runs(measures)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 1.3 + height_of(len(data))), sharey=True)
    for axes, time in ((left, "time_per_epoch_s"), (right, "training_time_s")):
        cut = data["cut_short"] > 0
        parts = {measured: data[time].where(~cut), extrapolated: data[time].where(cut)}
        if axes is right:
            parts[rest] = data["other_time_s"]
        scale, unit = unit_for(pd.DataFrame(parts).sum(axis=1), MINUTES)
        scaled = {name: lengths * scale for name, lengths in parts.items()}
        title = "Total time" if axes is right else "Time per epoch"
        stacked_rows(axes, data["configuration"].tolist(), scaled, LOOK, title, f"Time ({unit})")
        row_repeats(axes, data, runs, time, scale)
        axes.set_xlim(0, 1.04 * axes.dataLim.xmax)  # parts of no length end the axis at them
    legend_below(figure, left, right)
    return figure, data
