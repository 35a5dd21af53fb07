"""What the traces show: shares of summed time, CUDA calls, kernels, transfers and collectives."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from multicard.analysis.comparison.comparisons import means
from multicard.analysis.runs import per_run
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.text import for_figure
from multicard.core.units import BYTES, SECONDS, Units, unit_for
from multicard.figures.bars import height_of, stacked
from multicard.figures.catalog import POINTS, SUMMED, figure
from multicard.figures.points import draw_series, series_of
from multicard.figures.series import completed_of, configuration_names, device_axis, named_runs
from multicard.figures.style import HATCHES, WIDTH_IN, Look, NothingToShow, colours, legend_below, say
from multicard.figures.timeline import LOOK as OF_GPU

# Title, and what each is a share of.
SHARES = {
    "host_to_device_copies": ("Host-to-device copies", "Share of the time of\nmemory operations (%)"),
    "kernel_launches": ("Kernel launches", "Share of the time of\nCUDA API calls (%)"),
    "synchronizations": ("Synchronizations", "Share of the time of\nCUDA API calls (%)"),
    "nccl": ("NCCL kernels", "Share of the time of\nkernels (%)"),
}
NAME_LENGTH = 40  # characters of a part in the legend


@figure(
    "What share of the time goes to copies, kernel launches, synchronization and NCCL?",
    "Four shares of summed time in the profiled steps, each relative to what its axis names: host-to-device copies to "
    "all memory operations on the GPUs, kernel launches and synchronizations to all CUDA API calls of the host, NCCL "
    f"kernels to all kernels. {POINTS} These are sums over streams, threads and GPUs, not shares of wall time; "
    "synchronization that waits for useful work is not a loss.",
    profiled=True,
    paper_figure="A, figure 3",
)
def time_shares(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Four shares of summed time against devices, a panel each."""
    found = _recorded(tables, per_run.shares(tables).reindex(columns=list(SHARES)), "time shares")
    data, runs = series_of(tables.with_values(found), list(SHARES))
    figure, panels = plt.subplots(2, 2, figsize=(WIDTH_IN, 5.0))
    for axes, (name, (title, label)) in zip(panels.flat, SHARES.items(), strict=True):
        draw_series(axes, data, name, title, label, 100.0, runs)
    legend_below(figure, *panels.flat)
    return figure, data


@figure(
    "In which CUDA API calls does the host spend its time?",
    "Time of the calls per profiled step and process: first the functions that the papers report, then those with the "
    f"most time. {SUMMED} A blocking call such as cudaStreamSynchronize takes as long as what it waits for.",
    profiled=True,
    paper_figure="A, figure 5",
)
def cuda_api(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time that a process spends per step in each function of the CUDA API."""
    values = _recorded(tables, per_run.cuda_api(tables), "CUDA calls", "cuda_api")
    return _one_panel(tables, values, "CUDA API time", "Summed time of calls per step and process")


@figure(
    "What do the GPUs spend their time computing?",
    "Time of kernels per profiled step and GPU, by class as far as kernel names tell. Communication includes the time "
    f"that NCCL kernels wait for other ranks. {SUMMED}",
    profiled=True,
)
def kernel_classes(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time that a GPU spends per step in each class of kernels."""
    values = _recorded(tables, per_run.kernel_classes(tables), "kernels", "kernel_classes")
    values.columns = [name.replace("_", " ") for name in values]
    return _one_panel(tables, values, "Kernel time by class", "Summed time of kernels per step and GPU")


@figure(
    "How long do memory transfers take, and how much do they move?",
    "Time and bytes of copies and fills per profiled step and GPU, by direction and, where the trace says, by the kind "
    f"of host memory. {SUMMED} Whether a copy delayed anything, the figure utilization shows: it may overlap with "
    "computation.",
    profiled=True,
)
def memory_transfers(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time and bytes of memory operations per step and GPU, by direction and kind of host memory."""
    times = per_run.memory_operations(tables, "total_s")
    times = _recorded(tables, times, "memory operations", "memory_operations")
    moved = per_run.memory_operations(tables, "bytes").reindex(columns=times.columns)
    seconds, sizes = _means(tables, times), _means(tables, moved)
    height = 1.4 + height_of(len(seconds), 0.3)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, height), sharey=True)
    _draw_times(left, seconds, times, "Time of transfers", "Time per step and GPU")
    _draw_times(right, sizes, times, "Bytes of transfers", "Bytes per step and GPU", BYTES)
    legend_below(figure, left, right)
    data = seconds.rename(columns={kind: f"{kind} (s)" for kind in times})
    return figure, data.join(sizes[list(times)].rename(columns={kind: f"{kind} (bytes)" for kind in times}))


@figure(
    "Is a GPU busy, waiting for other GPUs, or idle?",
    "Share of the profiled time, in which every moment of a GPU counts once. Communication is exposed where the GPU "
    "computes nothing meanwhile. Idle time is divided by what the host does until it has launched what comes next: "
    "launching, allocating memory, loading code, synchronizing, loading data, or no call; what was launched in time is "
    "queued. Waiting inside a collective counts as communication. Bars are means over GPUs and repeats; each tick "
    "marks the busy time of one GPU in one run.",
    profiled=True,
)
def device_time(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Busy, exposed communication and idle shares of the capture: mean over GPUs, with a mark for each GPU."""
    devices, parts = per_run.gpu_time(tables), list(OF_GPU)
    values = devices.groupby("run", sort=False)[parts].mean()
    data = _means(tables, _recorded(tables, values, "activity of devices"))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + height_of(len(data))))
    shown = {part: 100 * data[part] for part in parts if data[part].gt(5e-4).any()}
    names = data["configuration"].tolist()
    stacked(axes, names, shown, OF_GPU, "Time of a GPU", "Share of the profiled time (%)")
    known = devices.merge(named_runs(tables.measures)[["run", "configuration"]], on="run")
    tick = {"marker": "|", "markersize": 9, "markeredgewidth": 1.0, "color": "black", "linestyle": "none"}
    axes.plot(100 * known["busy"], known["configuration"].map(names.index), label="busy time of one GPU", **tick)
    axes.set_xlim(0, 100)
    legend_below(figure, axes)
    return figure, data


@figure(
    "How long do collectives take, and how fast do they move data?",
    "Left: time of NCCL's kernels per profiled step and GPU, by collective; it includes waiting for other ranks. "
    f"{SUMMED} Right: bus bandwidth, as nccl-tests defines it, over the size of a collective's messages, a point per "
    "configuration, collective and size, of the GPU that waited least: over the time after all ranks had joined, or "
    "where that is not known over all of its time. Medians over repeats. Sizes are known where NCCL told them to the "
    "profiler.",
    profiled=True,
)
def collectives(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time of each collective per step and GPU, and bus bandwidth over the size of its messages."""
    times = _recorded(tables, per_run.collectives(tables), "collectives", "collectives")
    seconds, rates = _means(tables, times), _rates(tables)
    height = max(3.0, 1.4 + height_of(len(seconds), 0.3))
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, height))
    look = _draw_times(left, seconds, times, "Time of collectives", "Time per step and GPU")
    right.set_title("Bus bandwidth")
    legend_below(figure, left)
    if rates.empty:
        say(right, "sizes of messages were not recorded")
        return figure, seconds.rename(columns={name: f"{name} (s)" for name in times})
    import seaborn as sns  # here, since it takes a second to import

    sns.scatterplot(
        rates, x="size_bytes", y="bus_bandwidth_bytes_per_s", hue="collective", style="devices", s=60, ax=right,
        palette={name: look[name][0] for name in rates["collective"].unique()},
    )  # fmt: skip
    right.set(xscale="log", yscale="log", xlabel="Message size", ylabel="Bus bandwidth")
    for axis, unit in ((right.xaxis, "B"), (right.yaxis, "B/s")):
        axis.set_major_formatter(EngFormatter(unit))
        axis.set_minor_formatter(NullFormatter())
    right.set(xlim=_decades(rates["size_bytes"]), ylim=_decades(rates["bus_bandwidth_bytes_per_s"]))
    handles, words = right.get_legend_handles_labels()
    right.legend(handles[-rates["devices"].nunique() :], words[-rates["devices"].nunique() :], title=device_axis(rates))
    data = seconds.rename(columns={name: f"{name} (s)" for name in times})
    return figure, pd.concat([data, rates.drop(columns="device")], ignore_index=True)


def _rates(tables: ScenarioTables) -> pd.DataFrame:
    """Median over repeats of the bus bandwidth, a row per configuration, collective and size of its messages."""
    runs = named_runs(tables.measures)[["run", "device", "devices", "configuration"]]
    known = runs.merge(per_run.bus_bandwidths(tables), on="run")
    groups = known.groupby(["configuration", "device", "devices", "collective", "size_bytes"], sort=False)
    return groups["bus_bandwidth_bytes_per_s"].median().reset_index()


def _decades(values: pd.Series) -> tuple[float, float]:
    """Powers of ten around values, with some space: an axis from one to the other has two ticks at least."""
    return 10 ** np.floor(np.log10(0.8 * values.min())), 10 ** np.ceil(np.log10(1.25 * values.max()))


def _one_panel(tables: ScenarioTables, values: pd.DataFrame, title: str, label: str) -> tuple[Figure, pd.DataFrame]:
    """Stack seconds of each column, one bar per configuration."""
    data = _means(tables, values)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + height_of(len(data))))
    _draw_times(axes, data, values, title, label)
    legend_below(figure, axes)
    return figure, data


def _draw_times(
    axes: Axes, data: pd.DataFrame, columns: Sequence[str], title: str, label: str, units: Units = SECONDS
) -> Look:
    """Stack the columns, one bar per configuration; give the looks, of which neighbours differ in grey too."""
    parts = [name for name in columns if name != per_run.REST]
    look: Look = {
        name: (colour, HATCHES[index % len(HATCHES)])
        for index, (name, colour) in enumerate(zip(parts, colours(len(parts)), strict=True))
    } | {per_run.REST: ("#D9D9D9", "")}
    scale, unit = unit_for(data[list(columns)].sum(axis=1), units)
    short = {name: for_figure(name, NAME_LENGTH) for name in columns}
    shown = {short[name]: data[name] * scale for name in columns}
    of_shown = {short.get(name, name): own for name, own in look.items()}
    stacked(axes, data["configuration"].tolist(), shown, of_shown, title, f"{label} ({unit})")
    return look


def _recorded(tables: ScenarioTables, values: pd.DataFrame, what: str, per_step_of: str | None = None) -> pd.DataFrame:
    """The values, if there are any; else `NothingToShow` with the reason, as far as it is known.

    `per_step_of`: the activity table that values per step are made of.
    """
    if not (values.empty or values.isna().all(axis=None)):
        return values
    if per_step_of and len(tables.table(per_step_of)) and tables.table("runs_info")["traced_steps"].isna().all():
        raise NothingToShow(f"no steps were found in the traces, so there are no {what} per step")
    completed = completed_of(tables.measures)
    why = "" if set(completed["device"]) != {"cpu"} else " (runs on CPUs)"
    reasons = tables.table("runs_info")["trace_missing"].dropna().unique()
    if not why and len(reasons):
        why = f": {for_figure(reasons[0], 90)}"
    raise NothingToShow(f"no {what} were recorded{why}")


def _means(tables: ScenarioTables, values: pd.DataFrame) -> pd.DataFrame:
    """Mean over repeats of each column, one row per configuration of which some are known."""
    values = values.fillna(0.0).where(values.notna().any(axis=1), axis=0)  # what a run has none of
    measures = tables.with_values(values)
    data = means(measures, list(values))
    data.insert(0, "configuration", configuration_names(measures, data))
    return data[data[list(values)].notna().any(axis=1)].reset_index(drop=True)
