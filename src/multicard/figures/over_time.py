"""What single runs show: how step times scatter, and how the accuracy grows."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis import per_run
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import MINUTES
from multicard.figures.bars import group_axis
from multicard.figures.series import configuration_names, device_labels, varied
from multicard.figures.style import (
    DASHES,
    MARKERS,
    SECONDS,
    WIDTH_IN,
    NothingToShow,
    colours,
    legend_below,
    unit_for,
)
from multicard.workloads.vision.measures import ACCURACY

QUANTILES = {"p1_s": 0.01, "p25_s": 0.25, "median_s": 0.5, "p75_s": 0.75, "p99_s": 0.99}


def step_times(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Distribution of the measured steps' times: a box per configuration, all its repeats together."""
    steps = per_run.measured_steps(gathered)
    completed = gathered.measures[gathered.measures["outcome"] == "completed"]
    names = dict(zip(completed["run"], configuration_names(gathered.measures, completed), strict=True))
    steps = steps.assign(configuration=steps["run"].map(names)).dropna(subset=["configuration", "duration_s"])
    if steps.empty:
        raise NothingToShow("no step times were recorded")
    scale, unit = unit_for(steps["duration_s"], SECONDS)
    boxes, rows = [], []
    by_name = dict(list(steps.groupby("configuration", sort=False)["duration_s"]))
    for name in dict.fromkeys(name for name in names.values() if name in by_name):
        times = by_name[name].to_numpy()
        found = dict(zip(QUANTILES, np.quantile(times, list(QUANTILES.values())), strict=True))
        ends = found["p1_s"], found["p99_s"]
        rows.append({"configuration": name, "steps": len(times), "lowest_s": times.min(), **found})
        rows[-1]["highest_s"] = times.max()
        boxes.append(
            {
                "med": found["median_s"] * scale,
                "q1": found["p25_s"] * scale,
                "q3": found["p75_s"] * scale,
                "whislo": ends[0] * scale,
                "whishi": ends[1] * scale,
                "fliers": times[(times < ends[0]) | (times > ends[1])] * scale,
            }
        )
    data = pd.DataFrame(rows)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.9 + 0.32 * len(data)))
    axes.bxp(
        boxes,
        positions=range(len(boxes)),
        orientation="horizontal",
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#9ecae1", "edgecolor": "0.2", "linewidth": 0.8},
        medianprops={"color": "black", "linewidth": 1.6},
        flierprops={"marker": ".", "markersize": 3, "markerfacecolor": "0.4", "markeredgecolor": "none"},
    )
    group_axis(axes, data["configuration"].tolist(), horizontal=True)
    axes.set(xlabel=f"Time of a measured step ({unit})", title="Step times")
    return figure, data


def accuracy(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Test accuracy against training time, a line per run; the runs of a configuration share a colour and a name."""
    measures = gathered.measures[gathered.measures["outcome"] == "completed"]
    names = device_labels(measures, varied(gathered.measures, besides=("devices", "repeat")))
    data = per_run.accuracy_over_time(gathered).dropna(subset=["time_s", "test_accuracy"])
    data.insert(0, "series", data["run"].map(dict(zip(measures["run"], names, strict=True))))
    data = data.dropna(subset=["series"])
    if data.empty:
        raise NothingToShow("no test accuracy was recorded")
    scale, unit = unit_for(data["time_s"], MINUTES)
    series = [name for name in dict.fromkeys(names) if name in set(data["series"])]
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
    for index, (name, colour) in enumerate(zip(series, colours(len(series)), strict=True)):
        for number, (_, run) in enumerate(data[data["series"] == name].groupby("run", sort=False)):
            axes.plot(
                run["time_s"] * scale,
                100 * run["test_accuracy"],
                color=colour,
                marker=MARKERS[index % len(MARKERS)],
                linestyle=DASHES[index % len(DASHES)],
                markersize=3.5,
                markerfacecolor="white" if index % 2 else colour,
                label=name if number == 0 else "_",
            )
    goal = f"goal: {ACCURACY:.0%}".replace("%", " %")
    axes.axhline(100 * ACCURACY, color="0.4", linestyle=(0, (1, 1.5)), label=goal, zorder=1)
    axes.set(xlabel=f"Training time, without tests ({unit})", ylabel="Test accuracy (%)", xlim=(0, None))
    axes.set_title("Accuracy over time")
    legend_below(figure, axes)
    return figure, data
