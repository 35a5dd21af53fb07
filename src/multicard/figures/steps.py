"""Steps and epochs: the phases of a step, the distribution of step times, loss, and accuracy over time."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import means, quantiles_of_steps, varied
from multicard.analysis.runs import per_run
from multicard.analysis.runs.step_parts import StepPart
from multicard.analysis.scaling.speedup_tables import over_repeats
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.units import MINUTES, SECONDS, unit_for
from multicard.experiment.workload import workload_of
from multicard.figures.bars import grouped, height_of, name_rows, stacked
from multicard.figures.catalog import BARS, figure
from multicard.figures.series import completed_of, configuration_names, named_runs, unit
from multicard.figures.style import HATCHES, PHASES, WIDTH_IN, Look, NothingToShow, colours, legend_below
from multicard.figures.timeline import LOOK as OF_GPU
from multicard.workloads.vision.measures import ACCURACY

# The look of each `StepPart`.
PARTS: Look = {
    "compute": OF_GPU["compute"],
    "compute or communication": (OF_GPU["compute"][0], HATCHES[2]),
    "exposed communication": OF_GPU["exposed communication"],
    "waiting for other ranks": ("#F4A582", "ooo"),
    "memory operations": OF_GPU["exposed memory operations"],
    "CUDA graphs": OF_GPU["CUDA graphs"],
    "launch overhead": OF_GPU["idle (launching)"],
    "memory allocation": OF_GPU["idle (allocating)"],
    "loading code": OF_GPU["idle (loading code)"],
    "synchronization": OF_GPU["idle (synchronizing)"],
    "host without GPU calls": OF_GPU["idle (host in no call)"],
    "idle within graphs": OF_GPU["idle (within a graph)"],
    "queued on the GPU": OF_GPU["idle (queued)"],
    "data loading": (PHASES["data"][0], HATCHES[1]),
    "evaluation": (PHASES["evaluation"][0], HATCHES[2]),
    "stalls": ("#E31A1C", HATCHES[3]),
    "other": OF_GPU["idle (unknown)"],
}
LEAST = 1e-3  # share of a step from which on a part is drawn


@figure(
    "Where does the time of a step go?",
    "Mean duration of an optimizer step, split into phases, and evaluation inside a pass, by each rank's own clock: "
    "mean over ranks and measured steps, mean over repeats. With several ranks the backward phase includes gradient "
    "synchronization. On a GPU a phase lasts from when the device reaches its beginning until it reaches its end, on a "
    "CPU from call to call; what a GPU does meanwhile, the figure utilization shows.",
)
def step_breakdown(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Mean time per step in each phase, one bar per configuration; parts of a bar add up to the step."""
    columns = [f"{name}_s" for name in PHASES]
    # Only workloads that evaluate inside a pass have a column of that.
    measures = tables.measures.reindex(columns=list(dict.fromkeys((*tables.measures, *columns))))
    data = means(measures, columns)
    data.insert(0, "configuration", configuration_names(measures, data))
    times = data[columns].astype(float).fillna(0.0)
    if not times.any(axis=None):
        raise NothingToShow("no phases of steps were recorded")
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + height_of(len(data))))
    scale, unit = unit_for(times.sum(axis=1), SECONDS)
    parts = {name: times[f"{name}_s"] * scale for name in PHASES}
    stacked(axes, data["configuration"].tolist(), parts, PHASES, "Phases of a step", f"Mean time per step ({unit})")
    legend_below(figure, axes)
    return figure, data


@figure(
    "How far is training from what the device can compute, and where does the rest go?",
    "Where the step goes: means over repeats, which add up. The wait for data, evaluation and stalls are by the phases "
    "of the measured steps; the rest on GPUs as the trace divides the profiled steps, else by the phases, which tell "
    "compute from communication on one device only. Communication is exposed where the GPU computes nothing meanwhile. "
    "Where operations were counted and the peak of the device is known, another panel has the model FLOP utilization: "
    f"the operations of the model in a measured step over those that the device could have computed. {BARS} A GPU that "
    "computes all the time may be far from its peak: small or memory-bound kernels count as computing.",
    profiled=True,
)
def utilization(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """The parts of a step of each configuration, and where it is known its MFU."""
    shares = [part.column for part in StepPart]
    # Tables of earlier versions lack some.
    measures = tables.measures.reindex(columns=list(dict.fromkeys((*tables.measures, "mfu", *shares))))
    known = measures[shares].notna().any(axis=1)
    measures = measures.assign(**measures[shares].astype(float).fillna(0.0).where(known, axis=0))
    data = over_repeats(measures, ["mfu"]).join(means(measures, shares)[shares])
    data = data.rename(columns={part.column: part.value for part in StepPart})
    if data[["mfu", *StepPart]].isna().all(axis=None):
        raise NothingToShow("neither operations nor parts of steps are known")
    data.insert(0, "configuration", configuration_names(measures, data))
    ratios = (2, 3) if data["mfu"].notna().any() else (1,)
    figure, panels = plt.subplots(
        1, len(ratios), figsize=(WIDTH_IN, 1.3 + height_of(len(data))), sharey=True, width_ratios=ratios, squeeze=False
    )
    *rates, right = panels[0]
    for left in rates:
        runs = named_runs(measures).assign(series="_")
        grouped(left, data.assign(series="_", outcome="completed"), "configuration", "mfu", 100.0, runs)
        left.set(title="Model FLOP utilization", xlabel="Of the peak (%)")
    parts = {part: 100 * data[part] for part in PARTS if part in data and (data[part] >= LEAST).any()}
    stacked(right, data["configuration"].tolist(), parts, PARTS, "Where the step goes", "Share of the step (%)")
    right.set_xlim(0, 100)
    legend_below(figure, *rates, right)
    return figure, data


@figure(
    "How variable are step times?",
    "Durations of the measured steps (of each step, its slowest rank's), all repeats pooled. The box spans the middle "
    "half with a line at the median, whiskers the steps between the 1st and 99th percentiles, with a dot for each step "
    "beyond them. A diamond is the iteration time: elapsed time over steps, mean over repeats. Throughput follows from "
    "that, not from the median.",
)
def step_times(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Distribution of the times of measured steps: a box per configuration, all its repeats pooled."""
    runs = named_runs(tables.measures)
    steps = per_run.measured_steps(tables).merge(runs[["run", "configuration"]], on="run").dropna()
    if steps.empty:
        raise NothingToShow("no step times were recorded")
    data = quantiles_of_steps(steps)
    mean = runs.groupby("configuration")["iteration_time_s"].mean()
    data["iteration_time_s"] = data["configuration"].map(mean).astype(float)
    scale, unit = unit_for(steps["duration_s"], SECONDS)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.9 + height_of(len(data), 0.32)))
    times = dict(list((scale * steps["duration_s"]).groupby(steps["configuration"])))
    axes.boxplot(
        [times[name] for name in data["configuration"]], positions=range(len(data)), orientation="horizontal",
        whis=(1, 99), widths=0.6, patch_artist=True, boxprops={"facecolor": "#9ecae1"},
        medianprops={"color": "black", "linewidth": 1.6}, flierprops={"marker": ".", "markersize": 3},
    )  # fmt: skip
    axes.plot(
        scale * data["iteration_time_s"], range(len(data)), linestyle="none", marker="D", markersize=4.5,
        markerfacecolor="white", markeredgecolor="black", zorder=5, label="iteration time (mean)",
    )  # fmt: skip
    name_rows(axes, data["configuration"].tolist())
    axes.set(xlabel=f"Time of a measured step ({unit})", title="Step times", xlim=(0, None))
    legend_below(figure, axes)
    return figure, data


@figure(
    "How long does it take to reach a given accuracy?",
    "Test accuracy after each epoch over the training time up to it, evaluation excluded; one line per run. The dotted "
    "line is the papers' target.",
)
def accuracy(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Test accuracy against training time, a line per run; the runs of a configuration share a colour and a name."""
    data = _of_runs(tables, per_run.accuracy_over_time(tables).dropna(subset=["time_s", "test_accuracy"]))
    if data.empty:
        raise NothingToShow("no test accuracy was recorded")
    scale, unit = unit_for(data["time_s"], MINUTES)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
    shown = data.assign(time=scale * data["time_s"], accuracy=100 * data["test_accuracy"])
    _lines(axes, shown, "time", "accuracy", list(dict.fromkeys(data["series"])), markers=True)
    goal = f"target: {ACCURACY:.0%}"
    axes.axhline(100 * ACCURACY, color="0.4", linestyle=(0, (1, 1.5)), label=goal, zorder=1)
    axes.set(xlabel=f"Training time, without evaluation ({unit})", ylabel="Test accuracy (%)", xlim=(0, None))
    axes.set_title("Test accuracy over time")
    legend_below(figure, axes)
    return figure, data


@figure(
    "How does the loss fall?",
    "Training loss of every optimizer step, warm-up and profiled steps included: one line per run, mean over ranks; "
    "the repeats of a configuration share a colour and a style. Of a long run each point is the mean of neighbouring "
    "steps. For LLM runs each technique has a panel, or else each data set, since their losses cannot be compared.",
)
def loss(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Training loss over steps, a line per run."""
    measures = tables.measures
    among = varied(measures, besides=()) if workload_of(measures).name == "llm" else []
    apart = next((name for name in ("technique", "dataset") if name in among), None)
    data = _of_runs(tables, per_run.over_steps(tables, ["loss"]).dropna(subset=["loss"]), (apart,) if apart else ())
    if data.empty:
        raise NothingToShow("no losses were recorded")
    panels = {"Training loss": data}
    if apart:
        data.insert(0, apart, data["run"].map(measures.set_index("run")[apart]))
        panels = {f"Training loss, {unit(apart, value)}": rows for value, rows in data.groupby(apart, sort=False)}
    rows = -(-len(panels) // 2)
    figure, places = plt.subplots(
        rows, min(len(panels), 2), figsize=(WIDTH_IN, 0.8 + 2.6 * rows), squeeze=False, sharex=True
    )
    for axes, (title, own) in zip(places.flat, panels.items(), strict=False):
        _lines(axes, own, "step", "loss", list(dict.fromkeys(data["series"])))
        axes.set(title=title, xlabel="Optimizer step", ylabel="Loss", ylim=(0, None))
        axes.tick_params(labelbottom=True)
    for axes in places.flat[len(panels) :]:
        axes.remove()
    legend_below(figure, *places.flat[: len(panels)])
    return figure, data


def _of_runs(tables: ScenarioTables, rows: pd.DataFrame, besides: tuple[str, ...] = ()) -> pd.DataFrame:
    """The rows of completed runs, with the name of the run's configuration as their `series`."""
    completed = completed_of(tables.measures)
    names = dict(zip(completed["run"], configuration_names(tables.measures, completed, besides), strict=True))
    rows = rows[rows["run"].isin(names)].sort_values("run", key=lambda run: run.map(list(names).index), kind="stable")
    rows.insert(0, "series", rows["run"].map(names))
    return rows


def _lines(axes: Axes, data: pd.DataFrame, x: str, y: str, names: list[str], markers: bool = False) -> None:
    """Draw a line per run; the look of a configuration depends on all `names`, so that it is the same in all panels."""
    import seaborn as sns  # here, since it takes a second to import

    sns.lineplot(
        data, x=x, y=y, hue="series", style="series", hue_order=names, style_order=names, palette=colours(len(names)),
        units="run", estimator=None, markers=markers, linewidth=1.2, ax=axes,
    )  # fmt: skip
    axes.get_legend().remove()
