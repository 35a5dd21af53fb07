"""What a result costs: techniques of tuning in time and memory, a training's time against device-hours, energy."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from multicard.analysis.choice.choices import as_table, choices
from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.evidence import evidence_of, place_words
from multicard.analysis.runs.notices import UNCOUNTED
from multicard.analysis.scaling.speedup_tables import over_repeats
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.text import counted, for_figure
from multicard.core.units import BYTES, JOULES, MINUTES, SECONDS, unit_for
from multicard.experiment.workload import workload_of
from multicard.figures.bars import grouped, height_of
from multicard.figures.catalog import BARS, POINTS, figure
from multicard.figures.points import draw_series, height_for, series_of
from multicard.figures.series import completed_of, configuration_names, device_word, labels, named_runs
from multicard.figures.style import WIDTH_IN, NothingToShow, colours, legend_below
from multicard.workloads.llm.techniques import TECHNIQUES

HOURS = ((86400.0, "days"), (3600.0, "h"), *MINUTES)
HOURS_OF = {"cuda": "GPU-hours", "cpu": "Process-hours"}

# What each measure of memory is on a GPU, the peak also on a CPU.
MEMORY = {
    "peak_memory_bytes": "allocated (PyTorch)",
    "peak_reserved_bytes": "reserved (PyTorch)",
    "device_memory_used_bytes": "used by everything (NVML)",
}
RESIDENT = "resident (CPU process)"


@figure(
    "What does each fine-tuning technique cost in time and memory?",
    "Iteration time: elapsed time per optimizer step. Peak memory: the highest of any rank; on a GPU what PyTorch "
    "allocated, on a CPU the resident memory of the process, most of which is libraries. DPO processes both answers of "
    f"a sample. {BARS} Where a run did not complete, its outcome takes the place of the bar.",
)
def techniques(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and peak memory per technique and number of devices."""
    measures = tables.measures
    among = varied(measures, besides=("technique", "devices", "repeat"))
    own = tuple(name for name in among if any(name in entry.own_parameters for entry in TECHNIQUES.values()))
    data = over_repeats(measures, ["iteration_time_s", "peak_memory_bytes"], include_lost=True)
    data, runs = (
        each.assign(
            series=configuration_names(measures, each, besides=("technique", *own)),
            group=labels(each, ["technique", *own]),
        )
        for each in (data, completed_of(measures))
    )
    bars = data["series"].nunique()
    height = 1.1 + height_of(data["group"].nunique(), max(0.34, 0.14 * bars))
    figure, (time, memory) = plt.subplots(1, 2, figsize=(WIDTH_IN, height), sharey=True)
    scale, unit = unit_for(data["iteration_time_s"], SECONDS)
    grouped(time, data, "group", "iteration_time_s", scale, runs)
    time.set(title="Iteration time", xlabel=f"Time per step ({unit})")
    scale, unit = unit_for(data["peak_memory_bytes"], BYTES)
    grouped(memory, data, "group", "peak_memory_bytes", scale, runs)
    memory.set(title="Peak memory per rank", xlabel=f"Peak memory ({unit})")
    legend_below(figure, time)
    return figure, data[["series", *data.columns.drop(["series", "group"])]]


@figure(
    "How many devices: what does a shorter training cost in device-hours?",
    "Time of the whole training (as many samples, or tokens, for all: the most epochs of the runs) at the measured "
    "throughput, against the hours of all its devices together; start, tests and saving are not in it. A mark per "
    "configuration, geometric mean over repeats. A line joins the fastest on each number of devices; a hollow mark is "
    "no better in time or in hours than another one of the same training. Whiskers are 95% confidence intervals: time "
    "and hours are uncertain together, so they point at the origin. What learns otherwise (global batch size, "
    "precision, learning rate, technique) has another colour, and is not the same training. Each job has a panel. "
    "Where the length of a pass is not known, the training has a million samples.",
)
def tradeoff(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time of a whole training against its device-hours, a point per configuration, a panel per job."""
    found = [job for job in choices(evidence_of(tables)) if job.rows]
    if not found:
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step")
    data = as_table(found)
    known = data.dropna(subset=["time_s"])
    counts = {count: counted(count, device_word(tables.measures)) for count in sorted(known["devices"].unique())}
    # Names that begin with a dash are no entries of the legend.
    known = known.assign(
        _devices=known["devices"].map(counts),
        _training=known["changes"].map(lambda changes: for_figure(changes or "reference training")),
    )
    trainings = list(dict.fromkeys(known["_training"]))
    apart = {"hue": "_training", "hue_order": trainings} if len(trainings) > 1 else {}
    look = {"palette": colours(len(trainings))} if apart else {"color": colours(1)[0]}
    panels = list(known.groupby(["job", "machine", "versions"], sort=False, dropna=False))
    places = place_words([key[1:] for key, _ in panels])
    rows = -(-len(panels) // 2)
    size = (WIDTH_IN, 3.4 if len(panels) < 3 else 0.6 + 2.8 * rows)
    figure, grid = plt.subplots(rows, min(2, len(panels)), figsize=size, squeeze=False)
    import seaborn as sns  # here, since it takes a second to import

    for axes, ((job, *_), own), place in zip(grid.flat, panels, places, strict=False):
        scale, unit = unit_for(own["time_s"], HOURS)
        sns.scatterplot(
            own.assign(time_s=own["time_s"] * scale), x="device_hours", y="time_s", style="_devices",
            style_order=list(counts.values()), s=60, ax=axes, **apart, **look,
        )  # fmt: skip
        axes.get_legend().remove()
        _fill_the_best(axes.collections[0], own)
        for training, alike in own.groupby("_training", sort=False):
            colour = look["palette"][trainings.index(training)] if apart else look["color"]
            _join_the_fastest(axes, alike, scale, colour)
        # A whisker that would more than double the axes is cut.
        widest = (own["time_s_high"] / own["time_s"]).fillna(1.0).max()
        margin = 1.1 * min(2.0, widest)
        axes.set(
            title=for_figure(f"{job} ({place})" if place else job, 45), xlim=(0, margin * own["device_hours"].max()),
            ylim=(0, margin * scale * own["time_s"].max()),
            xlabel=f"{HOURS_OF[own['device'].iloc[0]]} of the training", ylabel=f"Time of the training ({unit})",
        )  # fmt: skip
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    legend_below(figure, *grid.flat[: len(panels)])
    return figure, data


def is_dominated(rows: pd.DataFrame) -> list[bool]:
    """Return of each row whether another of the same training takes less time or hours, and no more of the other."""
    costs = rows[["time_s", "device_hours"]].to_numpy()
    trainings = rows["_training"].to_numpy()
    dominated = []
    for training, cost in zip(trainings, costs, strict=True):
        rivals = costs[trainings == training]
        dominated.append(bool(((rivals <= cost).all(axis=1) & (rivals < cost).any(axis=1)).any()))
    return dominated


def _fill_the_best(marks: PathCollection, rows: pd.DataFrame) -> None:
    """Leave the marks of dominated configurations hollow; `marks` are those of the rows, in their order."""
    colours_of_rows = np.broadcast_to(marks.get_facecolors(), (len(rows), 4))
    fills = colours_of_rows.copy()
    fills[is_dominated(rows)] = 1.0, 1.0, 1.0, 1.0
    marks.set(facecolors=fills, edgecolors=colours_of_rows.copy())
    marks.set_linewidths(1.2)
    marks.set_zorder(3)


def _join_the_fastest(axes: Axes, rows: pd.DataFrame, scale: float, colour: Any) -> None:
    """Draw a line through the fastest row of each number of devices, and the interval of every row's time."""
    fastest = rows.loc[rows.groupby("devices")["time_s"].idxmin()].sort_values("devices")
    axes.plot(fastest["device_hours"], fastest["time_s"] * scale, color=colour, linewidth=0.9, zorder=2)
    for row in rows.dropna(subset=["time_s_low", "time_s_high"]).itertuples():
        bounds_s = np.array([row.time_s_low, row.time_s_high])
        hours = row.device_hours * bounds_s / row.time_s
        axes.plot(hours, scale * bounds_s, color=colour, linewidth=0.9, alpha=0.6, zorder=1)


@figure(
    "How much energy does an image, or a token, cost?",
    "Energy of all GPUs in the measured steps, from NVML's counter: for vision runs per processed image, for LLM runs "
    f"per token without padding. {POINTS} CPUs, memory, fans and idle GPUs are not metered.",
)
def energy(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Energy of the GPUs per sample, of LLM runs per token, over devices."""
    measures = tables.measures
    unit_of_work = workload_of(measures).unit
    value, of = unit_of_work.energy, unit_of_work.name
    if measures[value].isna().all():
        why = " (a CPU has no meter)" if set(measures["device"]) == {"cpu"} else ": the GPUs were not metered"
        raise NothingToShow(f"no energy was recorded{why}")
    data, runs = series_of(measures, [value])
    figure, axes = plt.subplots(figsize=(WIDTH_IN, height_for(data)))
    scale, unit = unit_for(data[value], JOULES)
    draw_series(axes, data, value, f"Energy per {of}, all GPUs", f"Energy per {of} ({unit})", scale, runs)
    legend_below(figure, axes)
    return figure, data


@figure(
    "How much memory does training need?",
    "Highest peak in the measured steps: of any GPU, allocated (by PyTorch, for tensors), reserved (by PyTorch's "
    "allocator, which keeps what tensors release), and used by everything on the GPU (by NVML, before any test: CUDA's "
    "context and NCCL's buffers too); with CPU processes the resident memory of any of them, most of it libraries. "
    f"{BARS} Where a run did not complete, its outcome takes the place of the bar.",
)
def memory(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Peak memory of the fullest device, a group of bars per configuration: allocated, reserved, used by everything."""
    measures = tables.measures
    known = [kind for kind in MEMORY if measures[kind].notna().any()]
    if not known:
        raise NothingToShow("no memory was recorded")
    data = over_repeats(measures, known, include_lost=True)
    data.insert(0, "configuration", configuration_names(measures, data))
    shown, runs = (_by_kind(each, known) for each in (data, named_runs(measures)))
    height = 1.1 + height_of(len(data), max(0.34, 0.14 * shown["series"].nunique()))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, height))
    scale, unit = unit_for(shown["bytes"], BYTES)
    grouped(axes, shown, "configuration", "bytes", scale, runs)
    axes.set(title="Peak memory of the fullest device", xlabel=f"Peak memory ({unit})")
    legend_below(figure, axes)
    return figure, data


def _by_kind(rows: pd.DataFrame, kinds: list[str]) -> pd.DataFrame:
    """The rows once for each kind of memory, its name in `series` and its size in `bytes`."""
    parts = []
    for kind in kinds:
        part = rows.copy().rename(columns={f"{kind}{end}": f"bytes{end}" for end in ("", "_low", "_high")})
        # What did not complete, or has a single kind of memory, as on CPUs, has one bar.
        part = part if kind == kinds[0] else part[part["bytes"].notna() & (part["device"] != "cpu")]
        parts.append(part.assign(series=np.where(part["device"] == "cpu", RESIDENT, MEMORY[kind])))
    columns = ["configuration", "series", "repeats", "outcome", "bytes", "bytes_low", "bytes_high"]
    return pd.concat(parts, ignore_index=True).filter(columns)
