"""What the traces show: shares of summed time, CUDA calls, kernels, transfers and the time of each GPU."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import means, varied
from multicard.analysis.runs import per_run
from multicard.analysis.runs.device_time import PARTS
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.text import for_figure
from multicard.core.units import BYTES, SECONDS, unit_for
from multicard.figures.bars import height_of, stacked_rows
from multicard.figures.labelling import label_points
from multicard.figures.points import draw_series, series_of
from multicard.figures.series import configuration_names, device_axis, labels, named_runs
from multicard.figures.style import (
    HATCHES,
    MARKERS,
    WIDTH_IN,
    NothingToShow,
    bandwidth_axes,
    colours,
    legend_below,
    say,
)
from multicard.figures.timeline import LOOKS

# Title, and what each is a share of.
SHARES = {
    "host_to_device_copies": ("Host-to-device copies", "Share of the time of\nmemory operations (%)"),
    "kernel_launches": ("Kernel launches", "Share of the time of\nCUDA API calls (%)"),
    "synchronizations": ("Synchronizations", "Share of the time of\nCUDA API calls (%)"),
    "nccl": ("NCCL kernels", "Share of the time of\nkernels (%)"),
}

REST = ("#D9D9D9", "")

MOST_LABELS = 24  # of points of bus bandwidths; more would cover each other

Look = dict[str, tuple[str, str]]


def time_shares(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Four shares of summed time against devices, a panel each."""
    found = per_run.shares(tables).reindex(columns=list(SHARES))
    if found.isna().all(axis=None):
        raise NothingToShow(f"none of the four shares was recorded{why_not(tables)}")
    measures = tables.with_values(found)
    data, runs = series_of(measures, list(SHARES))
    figure, panels = plt.subplots(2, 2, figsize=(WIDTH_IN, 5.0 if len(data) > 1 else 2.6))
    for axes, (name, (title, label)) in zip(panels.flat, SHARES.items(), strict=True):
        draw_series(axes, data, name, title, label, 100.0, runs)
    legend_below(figure, *panels.flat)
    return figure, data


def cuda_api(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time that a process spends per step in each function of the CUDA API."""
    values = _recorded(tables, per_run.cuda_api(tables), "CUDA calls")
    return _times(tables, values, "CUDA API time", "Summed time of calls per step and process")


def kernel_classes(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time that a GPU spends per step in each class of kernels."""
    values = _recorded(tables, per_run.kernel_classes(tables), "kernels")
    values.columns = [name.replace("_", " ") for name in values]
    return _times(tables, values, "Kernel time by class", "Summed time of kernels per step and GPU")


def memory_transfers(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time and bytes of memory operations per step and GPU, by direction and kind of host memory."""
    times = _recorded(tables, per_run.memory_operations(tables, "total_s"), "memory operations")
    moved = per_run.memory_operations(tables, "bytes").reindex(columns=times.columns)
    look = look_of(list(times))
    seconds = _means(tables, times)
    names = seconds["configuration"].tolist()
    sizes = _means(tables, moved)

    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 1.4 + height_of(len(names), 0.3)), sharey=True)
    scale, unit = unit_for(seconds[list(times)].sum(axis=1), SECONDS)
    kinds = list(times)
    stacked_rows(left, names, seconds[kinds] * scale, look, "Time of transfers", f"Time per step and GPU ({unit})")
    scale, unit = unit_for(sizes[kinds].sum(axis=1), BYTES)
    stacked_rows(right, names, sizes[kinds] * scale, look, "Bytes of transfers", f"Bytes per step and GPU ({unit})")
    legend_below(figure, left, right)
    data = seconds.rename(columns={kind: f"{kind} (s)" for kind in kinds})
    return figure, data.join(sizes[kinds].rename(columns={kind: f"{kind} (bytes)" for kind in kinds}))


def collectives(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time of each collective per step and GPU, and bus bandwidth over the size of its messages."""
    times = _recorded(tables, per_run.collectives(tables), "collectives")
    seconds = _means(tables, times)
    look = look_of(list(times))
    rates = _rates(tables)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, max(3.0, 1.4 + height_of(len(seconds), 0.3))))
    scale, unit = unit_for(seconds[list(times)].sum(axis=1), SECONDS)
    names, bars = seconds["configuration"].tolist(), seconds[list(times)] * scale
    stacked_rows(left, names, bars, look, "Time of collectives", f"Time per step and GPU ({unit})")
    right.set_title("Bus bandwidth")
    points = _draw_rates(right, rates, list(times), look)
    legend_below(figure, left, right)
    if len({count for *_, count in points}) > 1:
        label_points(right, points, [(x, y, x, y) for x, y, _ in points], MOST_LABELS)
        if right.texts:
            right.set_title(f"Bus bandwidth (number: {device_axis(tables.measures)})")
    data = seconds.rename(columns={name: f"{name} (s)" for name in times})
    return figure, pd.concat([data, rates], ignore_index=True) if len(rates) else data


def _rates(tables: ScenarioTables) -> pd.DataFrame:
    """Median over repeats of the bus bandwidth, a row per configuration, collective and size of its messages."""
    found = per_run.bus_bandwidths(tables)
    completed = named_runs(tables.measures)
    series = labels(completed, varied(tables.measures, besides=("devices", "repeat")))
    known = completed[["run", "devices", "configuration"]].assign(series=series).merge(found, on="run")
    groups = known.groupby(["configuration", "series", "devices", "collective", "size_bytes"], sort=False)
    return groups["bus_bandwidth_bytes_per_s"].median().reset_index()


def _draw_rates(axes: Axes, rates: pd.DataFrame, names: Sequence[str], look: Look) -> list[tuple[float, float, str]]:
    """Draw a point per configuration, collective and size; give their places and numbers of devices."""
    if rates.empty:
        say(axes, "sizes of messages were not recorded")
        return []
    x, y = rates["size_bytes"], rates["bus_bandwidth_bytes_per_s"]
    series = list(dict.fromkeys(rates["series"]))
    drawn = [(each, name) for each in series for name in names]
    drawn = [(each, name) for each, name in drawn if ((rates["series"] == each) & (rates["collective"] == name)).any()]
    for index, (each, name) in enumerate(drawn):
        own = (rates["series"] == each) & (rates["collective"] == name)
        is_hollow = index // len(MARKERS) % 2  # so that twice as many stay apart
        axes.plot(
            x[own], y[own], linestyle="none", marker=MARKERS[index % len(MARKERS)], markersize=5, color=look[name][0],
            label=name if len(series) == 1 else f"{each}: {name}",
            **({"markerfacecolor": "white"} if is_hollow else {"markeredgecolor": "0.2", "markeredgewidth": 0.5}),
        )  # fmt: skip
    bandwidth_axes(axes)
    axes.set(xlim=_decades(x), ylim=_decades(y))
    known = rates.sort_values("devices", kind="stable")
    return list(zip(known["size_bytes"], known[y.name], map(str, known["devices"]), strict=True))


def _decades(values: pd.Series) -> tuple[float, float]:
    """Powers of ten around values, with some space: an axis from one to the other has two ticks at least."""
    return 10 ** np.floor(np.log10(0.8 * values.min())), 10 ** np.ceil(np.log10(1.25 * values.max()))


def device_time(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Busy, exposed communication and idle shares of the capture: mean over GPUs, with a mark for each GPU."""
    devices = per_run.gpu_time(tables)
    parts = list(PARTS)
    values = _recorded(tables, devices.groupby("run", sort=False)[parts].mean(), "activity of devices")
    data = _means(tables, values)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + height_of(len(data))))
    shown = 100 * data[[name for name in parts if data[name].fillna(0).gt(5e-4).any()]]
    names = data["configuration"].tolist()
    stacked_rows(axes, names, shown, LOOKS, "Time of a GPU", "Share of the profiled time (%)")
    known = devices.merge(named_runs(tables.measures)[["run", "configuration"]], on="run")
    known = known[known["configuration"].isin(names)]
    tick = {"marker": "|", "markersize": 9, "markeredgewidth": 1.0, "color": "black", "linestyle": "none"}
    axes.plot(100 * known["busy"], known["configuration"].map(names.index), label="busy time of one GPU", **tick)
    axes.set_xlim(0, 100)
    legend_below(figure, axes)
    return figure, data


def look_of(names: Sequence[str]) -> Look:
    """Colour and hatch of each part of a bar, so that neighbours differ in grey too."""
    coloured = [name for name in names if name != per_run.REST]
    found = {
        name: (colour, HATCHES[index % len(HATCHES)])
        for index, (name, colour) in enumerate(zip(coloured, colours(len(coloured)), strict=True))
    }
    return found | {per_run.REST: REST}


def _times(tables: ScenarioTables, values: pd.DataFrame, title: str, label: str) -> tuple[Figure, pd.DataFrame]:
    """Stack seconds of each column, one bar per configuration."""
    data = _means(tables, values)
    columns = list(values)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + height_of(len(data))))
    scale, unit = unit_for(data[columns].sum(axis=1), SECONDS)
    bars = (data[columns] * scale).rename(columns=lambda name: for_figure(name, 40))
    stacked_rows(axes, data["configuration"].tolist(), bars, look_of(list(bars)), title, f"{label} ({unit})")
    legend_below(figure, axes)
    return figure, data


def _recorded(tables: ScenarioTables, values: pd.DataFrame, what: str) -> pd.DataFrame:
    """The values, if there are any."""
    if values.empty or values.isna().all(axis=None):
        raise NothingToShow(f"no {what} were recorded{why_not(tables)}")
    return values


def why_not(tables: ScenarioTables) -> str:
    """Why the traces of the completed runs have no GPU activity, as far as that is known."""
    completed = tables.measures[tables.measures["outcome"] == "completed"]
    if set(completed["device"]) == {"cpu"}:
        return " (runs on CPUs)"
    reasons = tables.table("runs_info")["trace_missing"].dropna().unique()
    return f": {for_figure(reasons[0], 90)}" if len(reasons) else ""


def _means(tables: ScenarioTables, values: pd.DataFrame) -> pd.DataFrame:
    """Mean over repeats of each column, one row per configuration of which some are known."""
    columns = list(values)
    values = values.fillna(0.0).where(values.notna().any(axis=1), axis=0)  # what a run has none of
    measures = tables.with_values(values)
    data = means(measures, columns)
    data.insert(0, "configuration", configuration_names(measures, data))
    return data[data[columns].notna().any(axis=1)].reset_index(drop=True)
