"""Figures of traces: shares of summed time, CUDA calls, kernels, transfers, time of GPUs and collectives."""

import itertools

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from multicard.core.text import for_figure
from multicard.core.units import BYTES, PERCENT, SECONDS, Units
from multicard.figures import meanings
from multicard.figures.bars import draw_stacked_bars, rows_height_in
from multicard.figures.catalog import POINTS, SUMMED, figure
from multicard.figures.meanings import Fill, Fills, fills_of
from multicard.figures.points import LINE_STYLES, Quantity, draw_series, series_of
from multicard.figures.series import completed_of, configuration_names, device_axis, named_runs
from multicard.figures.style import (
    NothingToShow,
    is_column,
    legend_below,
    note_inside,
    one_panel,
    side_by_side,
    width_in,
)
from multicard.figures.timeline import GPU_FILLS
from multicard.results import per_run
from multicard.results.results import Results

# The share that each panel shows. Its axis names the whole that the share is a part of.
SHARES = (
    Quantity("host_to_device_copies", "Host-to-device copies", "Share of the time of\nmemory operations (%)", 100.0),
    Quantity("kernel_launches", "Kernel launches", "Share of the time of\nCUDA API calls (%)", 100.0),
    Quantity("synchronizations", "Synchronizations", "Share of the time of\nCUDA API calls (%)", 100.0),
    Quantity("nccl", "NCCL kernels", "Share of the time of\nkernels (%)", 100.0),
)


@figure(
    "What share of the time goes to copies, kernel launches, synchronization and NCCL?",
    "Four shares of summed time in the profiled steps, each relative to what its axis names: host-to-device copies to "
    "all memory operations on the GPUs, kernel launches and synchronizations to all CUDA API calls of the host, NCCL "
    f"kernels to all kernels. {POINTS} These are sums over streams, threads and GPUs, not shares of wall time; "
    "synchronization that waits for useful work is not a loss.",
    brief="Sums over streams, threads and GPUs in the profiled steps, not shares of wall time.",
    profiled=True,
    paper_figure="A, figure 3",
)
def time_shares(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw four shares of summed time over the number of devices, a panel each.

    The table has a row per configuration: `series`, its parameters, `repeats`, and the ratios `host_to_device_copies`,
    `kernel_launches`, `synchronizations` and `nccl` with the bounds of their intervals (`…_low`, `…_high`).
    """
    names = [share.column for share in SHARES]
    shares = per_run.shares(results).reindex(columns=names)
    shares = _recorded(results, shares, "time shares")
    series = series_of(results.with_values(shares), names)
    row_count, column_count = (4, 1) if is_column() else (2, 2)
    figure, panels = plt.subplots(row_count, column_count, figsize=(width_in(), 2.4 * row_count))
    for axes, share in zip(panels.flat, SHARES, strict=True):
        draw_series(axes, series, share)
    legend_below(figure, *panels.flat)
    return figure, series.means


@figure(
    "In which CUDA API calls does the host spend its time?",
    "Time of the calls per profiled step and process: first the functions that the papers report, then those with the "
    f"most time. {SUMMED} A blocking call such as cudaStreamSynchronize takes as long as what it waits for.",
    brief="Per profiled step and process. Calls overlap, so this is not wall time.",
    profiled=True,
    paper_figure="A, figure 5",
)
def cuda_api(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the time that a process spends per step in each function of the CUDA API, a bar per configuration.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, and a column for each
    function, nine at most, with its seconds per step and process. Further functions are summed in the column `other`.
    """
    times_s = _recorded(results, per_run.cuda_api(results), "CUDA calls", "cuda_api")
    return _one_panel(results, times_s, "CUDA API time", "Summed time of calls per step and process")


@figure(
    "What do the GPUs spend their time computing?",
    "Time of kernels per profiled step and GPU, by class, inferred from kernel names. Communication includes the time "
    f"that NCCL kernels wait for other ranks. {SUMMED}",
    brief="Per profiled step and GPU. Kernels overlap, so this is not wall time; communication includes waiting for "
    "other ranks.",
    profiled=True,
)
def kernel_classes(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the time that a GPU spends per step in each class of kernels, a bar per configuration.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, and a column for each
    class, eight at most, with its seconds per step and GPU. Further classes are summed in the column `other`.
    """
    times_s = _recorded(results, per_run.kernel_classes(results), "kernels", "kernel_classes")
    times_s.columns = [name.replace("_", " ") for name in times_s]
    return _one_panel(results, times_s, "Kernel time by class", "Summed time of kernels per step and GPU")


@figure(
    "How long do memory transfers take, and how much do they move?",
    "Time and bytes of copies and fills per profiled step and GPU, by direction and, if the trace shows it, by kind "
    f"of host memory. {SUMMED} A copy may overlap with computation; the figure utilization shows whether it delayed "
    "anything.",
    brief="Copies and fills per profiled step and GPU. They may overlap with computation.",
    profiled=True,
)
def memory_transfers(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the time (left) and the bytes (right) of memory operations per step and GPU, a bar per configuration.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, and two columns for
    each kind of transfer, such as `host to device, pinned (s)` and `host to device, pinned (bytes)`.
    """
    times_of_runs = per_run.memory_operations(results, "total_s")
    times_of_runs = _recorded(results, times_of_runs, "memory operations", "memory_operations")
    kinds = list(times_of_runs)
    bytes_of_runs = per_run.memory_operations(results, "bytes").reindex(columns=kinds)
    times_s = _means(results, times_of_runs)
    sizes = _means(results, bytes_of_runs)
    height_in = 1.4 + rows_height_in(times_s["configuration"], 0.3)
    figure, (time_axes, bytes_axes) = side_by_side(height_in, share_rows=True)
    fills = fills_of(kinds, per_run.REST)
    _draw_parts(time_axes, times_s, fills, "Time of transfers", "Time per step and GPU", SECONDS)
    _draw_parts(bytes_axes, sizes, fills, "Bytes of transfers", "Bytes per step and GPU", BYTES)
    legend_below(figure, time_axes, bytes_axes)
    bytes_columns = sizes[kinds].rename(columns={kind: f"{kind} (bytes)" for kind in kinds})
    data = _with_seconds(times_s, kinds).join(bytes_columns)
    return figure, data


@figure(
    "Is a GPU busy, waiting for other GPUs, or idle?",
    "Share of the profiled time, in which every moment of a GPU counts once. Communication is exposed while the GPU "
    "computes nothing. Idle time is divided by what the host does until it has launched the next activity (launching, "
    "allocating memory, loading code, synchronizing, loading data, or no call); it is queued if that was launched in "
    "time. Waiting inside a collective counts as communication. Bars are means over GPUs and repeats; each tick marks "
    "the busy time of one GPU in one run.",
    brief="Every moment of a GPU counts once. Idle time is divided by what the host does in it; each tick is the busy "
    "time of one GPU in one run.",
    profiled=True,
)
def device_time(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the parts of a GPU's time, a bar per configuration, with a tick at the busy time of each GPU of each run.

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, and a column for each
    part of `GPU_FILLS` with its share of the profiled time, a ratio, mean over GPUs and repeats.
    """
    gpus = per_run.gpu_time(results)
    parts = list(GPU_FILLS)
    shares_of_runs = gpus.groupby("run", sort=False)[parts].mean()
    data = _means(results, _recorded(results, shares_of_runs, "activity of devices"))
    figure, axes = one_panel(1.3 + rows_height_in(data["configuration"]))
    least_visible = 5e-4
    shown = {part: data[part] for part in parts if data[part].gt(least_visible).any()}
    names = data["configuration"].tolist()
    draw_stacked_bars(
        axes,
        names,
        shown,
        GPU_FILLS,
        title="Time of a GPU",
        label="Share of the profiled time",
        units=PERCENT,
        repeats=data["repeats"],
    )
    named_gpus = gpus.merge(named_runs(results.frame())[["run", "configuration"]], on="run")
    axes.plot(
        100 * named_gpus["busy"],
        named_gpus["configuration"].map(names.index),
        label="busy time of one GPU in one run",
        marker="|",
        markersize=9,
        markeredgewidth=1.0,
        color="black",
        linestyle="none",
    )
    legend_below(figure, axes)
    return figure, data


@figure(
    "How long do collectives take, and how fast do they move data?",
    "Left: time of NCCL's kernels per profiled step and GPU, by collective; it includes waiting for other ranks. "
    f"{SUMMED} Right: bus bandwidth, as nccl-tests defines it, over the size of a collective's messages, a point per "
    "configuration, collective and size, of the GPU that waited least: over the time after all ranks had joined or, if "
    "that is unknown, over its whole time. Medians over repeats. A line is the peak that multicard doctor --measure "
    "found for all-reduces between as many GPUs of such a machine. Sizes are known if NCCL reported them to the "
    "profiler.",
    brief="Left: per profiled step and GPU, with waiting for other ranks. Right: bus bandwidth, as nccl-tests "
    "defines it, of the GPU that waited least; medians over repeats. Lines are measured peaks (multicard doctor).",
    profiled=True,
)
def collectives(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the time of each collective per step and GPU (left), and bus bandwidth over the size of messages (right).

    The table has a row per configuration: `configuration` (its name), its parameters, `repeats`, and a column for each
    collective, eight at most, such as `all-reduce (s)`, in seconds per step and GPU; further ones are summed in the
    column `other (s)`. If sizes of messages were recorded, rows follow for each configuration, `collective` and
    `size_bytes` with the `bus_bandwidth_bytes_per_s` and the measured `peak_bus_bandwidth_bytes_per_s`, empty if it is
    not known.
    """
    times_of_runs = _recorded(results, per_run.collectives(results), "collectives", "collectives")
    names = list(times_of_runs)
    times_s = _means(results, times_of_runs)
    bandwidths = _bus_bandwidths(results)
    height_in = max(2.8, 1.4 + rows_height_in(times_s["configuration"], 0.3))
    figure, (time_axes, bandwidth_axes) = side_by_side(height_in)
    fills = fills_of(names, per_run.REST)
    _draw_parts(time_axes, times_s, fills, "Time of collectives", "Time per step and GPU", SECONDS)
    bandwidth_axes.set_title("Bus bandwidth")
    legend_below(figure, time_axes)
    data = _with_seconds(times_s, names)
    if bandwidths.empty:
        note_inside(bandwidth_axes, "sizes of messages were not recorded")
        return figure, data
    _draw_bandwidths(bandwidth_axes, bandwidths, fills)
    return figure, pd.concat([data, bandwidths.drop(columns="device")], ignore_index=True)


def _bus_bandwidths(results: Results) -> pd.DataFrame:
    """Return the bus bandwidth, median over repeats: a row per configuration, collective and message size.

    Columns: `configuration`, `device`, `devices`, `collective`, `size_bytes`, `bus_bandwidth_bytes_per_s` and
    `peak_bus_bandwidth_bytes_per_s`, NaN if it is not known.
    """
    runs = named_runs(results.frame())
    peak = "peak_bus_bandwidth_bytes_per_s"
    runs = runs[["run", "device", "devices", "configuration", peak]].astype({peak: float})
    bandwidths = runs.merge(per_run.bus_bandwidths(results), on="run")
    groups = bandwidths.groupby(["configuration", "device", "devices", "collective", "size_bytes"], sort=False)
    return groups[["bus_bandwidth_bytes_per_s", peak]].median().reset_index()


def _draw_bandwidths(axes: Axes, bandwidths: pd.DataFrame, fills: Fills) -> None:
    """Draw the bus bandwidth over the size of messages: a colour per collective, a marker per number of devices.

    A line is the measured peak of a number of devices. `fills`: fill of each collective in the left panel; its legend
    explains the colours.
    """
    # Imported here because seaborn takes a second to import.
    import seaborn as sns

    sns.scatterplot(
        bandwidths,
        x="size_bytes",
        y="bus_bandwidth_bytes_per_s",
        hue="collective",
        style="devices",
        s=36,
        alpha=0.8,
        ax=axes,
        palette={name: fills.get(name, Fill(meanings.OTHER, "")).colour for name in bandwidths["collective"].unique()},
    )
    # Of seaborn's legend only its last entries, the numbers of devices, are kept.
    count = bandwidths["devices"].nunique()
    all_handles, all_words = axes.get_legend_handles_labels()
    handles, words = all_handles[-count:], all_words[-count:]
    peaks = bandwidths.groupby("devices")["peak_bus_bandwidth_bytes_per_s"].max().dropna()
    for (devices, peak), dashes in zip(peaks.items(), itertools.cycle(LINE_STYLES[1:]), strict=False):
        handles.append(axes.axhline(peak, color="0.3", linewidth=1.0, linestyle=dashes, zorder=1))
        words.append(f"peak of {devices}")
    axes.legend(handles, words, title=device_axis(bandwidths))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="Message size",
        ylabel="Bus bandwidth",
        xlim=_around(bandwidths["size_bytes"]),
        ylim=_around(pd.concat([bandwidths["bus_bandwidth_bytes_per_s"], peaks])),
    )
    for axis, unit in ((axes.xaxis, "B"), (axes.yaxis, "B/s")):
        low, high = axis.get_view_interval()
        several_decades, many_decades = 1e3, 1e4
        # Beside each other, the labels of many decades would touch.
        base = 100 if axis is axes.xaxis and high > many_decades * low else 10
        axis.set_major_locator(LogLocator(base, subs=(1,) if high > several_decades * low else (1, 2, 5)))
        axis.set_major_formatter(EngFormatter(unit))
        axis.set_minor_formatter(NullFormatter())


def _around(values: pd.Series) -> tuple[float, float]:
    """Return ends of a logarithmic axis with some space around all values, at least from half to twice a value."""
    return values.min() / 2, values.max() * 2


def _one_panel(results: Results, times_of_runs: pd.DataFrame, title: str, label: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure with one panel, in which the columns are stacked to a bar per configuration, and its table.

    `times_of_runs`: seconds, a row per run.
    """
    data = _means(results, times_of_runs)
    figure, axes = one_panel(1.3 + rows_height_in(data["configuration"]))
    fills = fills_of(times_of_runs, per_run.REST)
    _draw_parts(axes, data, fills, title, label, SECONDS)
    legend_below(figure, axes)
    return figure, data


def _draw_parts(axes: Axes, data: pd.DataFrame, fills: Fills, title: str, label: str, units: Units) -> None:
    """Draw a bar per configuration, stacked from the columns that `fills` names; the longest bar decides the unit."""
    draw_stacked_bars(
        axes,
        data["configuration"].tolist(),
        {part: data[part] for part in fills},
        fills,
        title=title,
        label=label,
        units=units,
        repeats=data["repeats"],
    )


def _with_seconds(data: pd.DataFrame, parts: list[str]) -> pd.DataFrame:
    """Return a table in which the names of the columns `parts` state their unit, seconds."""
    return data.rename(columns={part: f"{part} (s)" for part in parts})


def _recorded(results: Results, values: pd.DataFrame, what: str, per_step_of: str | None = None) -> pd.DataFrame:
    """Return `values` if any run has one; else raise `NothingToShow` with the reason, if that is known.

    Parameters
    ----------
    results
        The results of the scenario, which show why there are no values.
    values
        A row per run.
    what
        What the values are about, in words.
    per_step_of
        The activity table that the values are computed from, if they are per step; else None.
    """
    if not (values.empty or values.isna().all(axis=None)):
        return values
    traces = results.table("runs_info")
    if per_step_of and len(results.table(per_step_of)) and traces["traced_steps"].isna().all():
        raise NothingToShow(f"no steps were found in the traces, so there are no {what} per step")
    reasons = traces["trace_missing"].dropna().unique()
    if set(completed_of(results.frame())["device"]) == {"cpu"}:
        reason = " (runs on CPUs)"
    elif len(reasons):
        reason = f": {for_figure(reasons[0], 90)}"
    else:
        reason = ""
    raise NothingToShow(f"no {what} were recorded{reason}")


def _means(results: Results, values: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over repeats of each column of `values`, which has a row per run.

    The result has a row per configuration that has some values, with the columns `configuration` (its name), its
    parameters, `repeats`, and those of `values`.
    """
    columns = list(values)
    data = results.with_values(values).mean_parts(columns)
    data.insert(0, "configuration", configuration_names(results.frame(), data))
    has_values = data[columns].notna().any(axis=1)
    # If some values of a configuration were recorded, the others are 0.
    return data[has_values].fillna(dict.fromkeys(columns, 0.0)).reset_index(drop=True)
