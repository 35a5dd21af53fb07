"""Steps and epochs: the phases of a step, the distribution of step times, and accuracy over time."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import means, quantiles_of_steps
from multicard.analysis.runs import per_run
from multicard.analysis.runs.breakdown import COLUMNS
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.layout import PHASES
from multicard.core.units import MINUTES, SECONDS, unit_for
from multicard.figures.bars import group_axis, height_of, stacked_rows
from multicard.figures.learning import of_named, run_lines, run_names
from multicard.figures.series import configuration_names, named_runs
from multicard.figures.style import (
    HATCHES,
    PHASE_COLOURS,
    WIDTH_IN,
    NothingToShow,
    legend_below,
)
from multicard.figures.timeline import LOOKS
from multicard.workloads.vision.measures import ACCURACY
from multicard.workloads.vision.strategy import STRATEGIES

PARTS = (*PHASES, "evaluation", "other")  # of a step, which add up to it
LOOK = {name: (PHASE_COLOURS[name], HATCHES[index % len(HATCHES)]) for index, name in enumerate(PARTS)}
COMMUNICATION = "exposed communication"


def step_breakdown(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Mean time per step in each phase, one bar per configuration; parts of a bar add up to the step."""
    columns = [f"{name}_s" for name in PARTS]
    # Only workloads that evaluate inside a pass have a column of that.
    measures = measures.reindex(columns=list(dict.fromkeys((*measures, *columns, COLUMNS[COMMUNICATION])))).copy()
    measures = measures.assign(exposed_communication_s=_in_backward(measures))
    data = means(measures, [*columns, "exposed_communication_s"])
    names = configuration_names(measures, data)
    data.insert(0, "configuration", names)
    times = data[columns].astype(float).fillna(0.0)
    if not times.any(axis=None):
        raise NothingToShow("no phases of steps were recorded")

    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + height_of(len(data))))
    scale, unit = unit_for(times.sum(axis=1), SECONDS)
    apart = data["exposed_communication_s"].astype(float).fillna(0.0)
    data = data if apart.any() else data.drop(columns="exposed_communication_s")
    shown = times.assign(backward_s=times["backward_s"] - apart)
    parts = {}
    for name in PARTS:
        parts |= {name: shown[f"{name}_s"] * scale}
        parts |= {COMMUNICATION: apart * scale} if name == "backward" else {}
    look = LOOK | {COMMUNICATION: LOOKS[COMMUNICATION]}
    stacked_rows(axes, names, parts, look, "Phases of a step", f"Mean time per step ({unit})")
    legend_below(figure, axes)
    return figure, data


def _in_backward(measures: pd.DataFrame) -> pd.Series:
    """Exposed communication of a step in seconds, where a trace tells it and all of it is within the backward phase.

    It is where a strategy reduces gradients only: one that shards the model also gathers weights in other phases.
    """
    share = measures[COLUMNS[COMMUNICATION]].astype(float)
    names = measures["strategy"] if "strategy" in measures else pd.Series("", measures.index)
    reduces = names.map(lambda name: name in STRATEGIES and not STRATEGIES[name].shards_model).astype(bool)
    seconds = (share * measures["iteration_time_s"].astype(float)).where(reduces)
    return seconds.clip(upper=measures["backward_s"].astype(float))


def step_times(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Distribution of the times of measured steps: a box per configuration, all its repeats pooled."""
    steps = per_run.measured_steps(tables)
    runs = named_runs(tables.measures)
    steps = steps.assign(configuration=steps["run"].map(runs.set_index("run")["configuration"]))
    steps = steps.dropna(subset=["configuration", "duration_s"])
    if steps.empty:
        raise NothingToShow("no step times were recorded")
    scale, unit = unit_for(steps["duration_s"], SECONDS)
    data = quantiles_of_steps(steps)
    data["iteration_time_s"] = data["configuration"].map(runs.groupby("configuration")["iteration_time_s"].mean())
    by_name = (scale * steps["duration_s"]).groupby(steps["configuration"])
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.9 + height_of(len(data), 0.32)))
    axes.boxplot(
        [by_name.get_group(name) for name in data["configuration"]],
        whis=(1, 99),
        positions=range(len(data)),
        orientation="horizontal",
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": "#9ecae1", "edgecolor": "0.2", "linewidth": 0.8},
        medianprops={"color": "black", "linewidth": 1.6},
        flierprops={"marker": ".", "markersize": 3, "markerfacecolor": "0.4", "markeredgecolor": "none"},
    )
    if data["iteration_time_s"].notna().any():
        axes.plot(
            data["iteration_time_s"].astype(float) * scale, range(len(data)), linestyle="none", marker="D",
            markersize=4.5, markerfacecolor="white", markeredgecolor="black", zorder=5, label="iteration time (mean)",
        )  # fmt: skip
        legend_below(figure, axes)
    group_axis(axes, data["configuration"].tolist(), horizontal=True)
    axes.set(xlabel=f"Time of a measured step ({unit})", title="Step times")
    return figure, data


def accuracy(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Test accuracy against training time, a line per run; the runs of a configuration share a colour and a name."""
    data = per_run.accuracy_over_time(tables).dropna(subset=["time_s", "test_accuracy"])
    names = {run: name for run, name in run_names(tables).items() if run in set(data["run"])}
    data = of_named(data, names)
    if data.empty:
        raise NothingToShow("no test accuracy was recorded")
    scale, unit = unit_for(data["time_s"], MINUTES)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
    run_lines(axes, data.assign(time=data["time_s"] * scale), "time", "test_accuracy", names, 100.0)
    goal = f"target: {ACCURACY:.0%}"
    axes.axhline(100 * ACCURACY, color="0.4", linestyle=(0, (1, 1.5)), label=goal, zorder=1)
    axes.set(xlabel=f"Training time, without evaluation ({unit})", ylabel="Test accuracy (%)", xlim=(0, None))
    axes.set_title("Test accuracy over time")
    legend_below(figure, axes)
    return figure, data
