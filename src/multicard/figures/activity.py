"""What the traces show: CUDA calls, kernels, transfers and each card's time, one bar per configuration."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis import per_run
from multicard.analysis.device_time import PARTS
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.figures.bars import group_axis, stacked
from multicard.figures.series import configuration_names, medians
from multicard.figures.style import (
    BYTES,
    HATCHES,
    SECONDS,
    WIDTH_IN,
    NothingToShow,
    colours,
    legend_below,
    plain_text,
    unit_for,
)
from multicard.figures.timeline import LOOKS

REST = ("#D9D9D9", "")

Look = dict[str, tuple[str, str]]


def cuda_api(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time that a process spends per step in each function of the CUDA API."""
    values = _recorded(gathered, per_run.cuda_api(gathered), "CUDA calls")
    return _times(gathered, values, "CUDA API time", "Summed time of calls per step and process")


def kernel_classes(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time that a card spends per step in each class of kernels."""
    values = _recorded(gathered, per_run.kernel_classes(gathered), "kernels")
    values.columns = [name.replace("_", " ") for name in values]
    return _times(gathered, values, "Kernel time by class", "Summed time of kernels per step and card")


def memory_transfers(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time and bytes of memory operations per step and card, by direction and kind of host memory."""
    times = _recorded(gathered, per_run.memory_operations(gathered, "total_s"), "memory operations")
    moved = per_run.memory_operations(gathered, "bytes").reindex(columns=times.columns)
    look = look_of(list(times))
    seconds = _medians(gathered, times)
    names = seconds["configuration"].tolist()
    sizes = _medians(gathered, moved)

    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 1.4 + 0.3 * len(names)), sharey=True)
    scale, unit = unit_for(seconds[list(times)].sum(axis=1), SECONDS)
    _bars(left, seconds, list(times), look, scale)
    left.set(title="Time of memory operations", xlabel=f"Time per step and card ({unit})")
    scale, unit = unit_for(sizes[list(times)].sum(axis=1), BYTES)
    _bars(right, sizes, list(times), look, scale)
    right.set(title="Bytes", xlabel=f"Bytes per step and card ({unit})")
    legend_below(figure, left)
    kinds = list(times)
    data = seconds.rename(columns={kind: f"{kind} (s)" for kind in kinds})
    return figure, data.join(sizes[kinds].rename(columns={kind: f"{kind} (bytes)" for kind in kinds}))


def device_time(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Busy, exposed communication and idle shares of the capture: mean over cards, with a mark for each card."""
    cards = per_run.gpu_time(gathered)
    parts = list(PARTS)
    values = _recorded(gathered, cards.groupby("run", sort=False)[parts].mean(), "activity of devices")
    data = _medians(gathered, values)
    busy = 100 * (1 - cards[[name for name in parts if name.startswith("idle")]].sum(axis=1))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + 0.34 * len(data)))
    shown = [name for name in parts if data[name].fillna(0).gt(5e-4).any()]
    _bars(axes, data, shown, LOOKS, 100.0)
    place = _places(gathered, data)
    known = cards["run"].isin(place)
    axes.plot(
        busy[known],
        [place[run] for run in cards["run"][known]],
        linestyle="none",
        marker="|",
        markersize=9,
        markeredgewidth=1.0,
        color="black",
        label="busy time of one card",
    )
    axes.set(xlim=(0, 100), xlabel="Share of the profiled time (%)", title="Time of a card, mean over cards")
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


def _times(gathered: ScenarioTables, values: pd.DataFrame, title: str, label: str) -> tuple[Figure, pd.DataFrame]:
    """Stack seconds of each column, one bar per configuration."""
    data = _medians(gathered, values)
    columns = list(values)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.3 + 0.34 * len(data)))
    scale, unit = unit_for(data[columns].sum(axis=1), SECONDS)
    shown = {plain_text(name, 40): name for name in columns}
    look = look_of(list(shown))
    _bars(axes, data.rename(columns={name: text for text, name in shown.items()}), list(shown), look, scale)
    axes.set(xlabel=f"{label} ({unit})", title=title)
    legend_below(figure, axes)
    return figure, data


def _recorded(gathered: ScenarioTables, values: pd.DataFrame, what: str) -> pd.DataFrame:
    """Values per run, of which there must be some."""
    if values.empty or values.isna().all(axis=None):
        raise NothingToShow(f"no {what} were recorded{why_not(gathered)}")
    return values


def why_not(gathered: ScenarioTables) -> str:
    """Why the traces of the completed runs lack what only cards leave there, as far as that is known."""
    completed = gathered.measures[gathered.measures["outcome"] == "completed"]
    if set(completed["device"]) == {"cpu"}:
        return " (runs on CPUs)"
    reasons = gathered.table("runs_info")["trace_missing"].dropna().unique()
    return f": {plain_text(reasons[0], 90)}" if len(reasons) else ""


def _medians(gathered: ScenarioTables, values: pd.DataFrame) -> pd.DataFrame:
    """Median over repeats of each column, one row per configuration of which some are known."""
    columns = list(values)
    measures = gathered.with_values(values)
    data = medians(measures, columns)
    data.insert(0, "configuration", configuration_names(measures, data))
    return data[data[columns].notna().any(axis=1)].reset_index(drop=True)


def _places(gathered: ScenarioTables, data: pd.DataFrame) -> dict[str, int]:
    """Place of the bar of each completed run."""
    completed = gathered.measures[gathered.measures["outcome"] == "completed"]
    at = {name: place for place, name in enumerate(data["configuration"])}
    names = configuration_names(gathered.measures, completed)
    return {run: at[name] for run, name in zip(completed["run"], names, strict=True) if name in at}


def _bars(axes: Axes, data: pd.DataFrame, parts: Sequence[str], look: Look, scale: float) -> None:
    stacked(axes, range(len(data)), {name: data[name] * scale for name in parts}, look, horizontal=True)
    group_axis(axes, data["configuration"].tolist(), horizontal=True)
