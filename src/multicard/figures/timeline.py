"""Draw where the time of each device goes: over the capture or all steps, and step by step."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.core.files import atomic_write
from multicard.core.text import for_figure
from multicard.core.units import PERCENT, show
from multicard.core.values import Cell
from multicard.figures import meanings
from multicard.figures.bars import draw_stacked_bars
from multicard.figures.meanings import Fill, Fills
from multicard.figures.style import legend_below, styled, width_in
from multicard.results.device_time import device_time

# Rows of the activity table `timeline`.
TimelineRows = Sequence[Mapping[str, Cell]]

MOST_DEVICES = 8  # number of devices that are drawn; further ones are left out
# Number of bars in a panel of steps. If there are more steps, each bar is the mean of neighbouring steps.
MOST_BARS = 60

# Fills of the parts of a GPU's time, which `device_time` computes.
GPU_FILLS: Fills = {
    "compute": Fill(meanings.COMPUTE, ""),
    "compute and communication": Fill(meanings.OVERLAPPED, "///"),
    "exposed communication": Fill(meanings.COMMUNICATION, "\\\\\\"),
    "exposed memory operations": Fill(meanings.MEMORY, "..."),
    "CUDA graphs": Fill(meanings.GRAPHS, "---"),
    "idle (launching)": Fill(meanings.LAUNCHING, "xxx"),
    "idle (allocating)": Fill(meanings.ALLOCATING, "ooo"),
    "idle (loading code)": Fill(meanings.LOADING_CODE, "+++"),
    "idle (synchronizing)": Fill(meanings.SYNCHRONIZING, "ooo"),
    "idle (data loading)": Fill(meanings.DATA, "///"),
    "idle (host in no call)": Fill(meanings.HOST, "///"),
    "idle (within a graph)": Fill(meanings.IDLE_IN_GRAPH, "---"),
    "idle (queued)": Fill(meanings.QUEUED, "---"),
    "idle (unknown)": Fill(meanings.OTHER, ""),
}


def draw_timeline(rows: TimelineRows, path: Path) -> None:
    """Draw rows of the table `timeline` with the function `timeline`, and write the figure to a PNG file."""
    with styled():
        figure = timeline(rows)
        with atomic_write(path) as temporary:
            figure.savefig(temporary)
        plt.close(figure)


def timeline(rows: TimelineRows) -> Figure:
    """Draw a bar per device for the capture or all steps, and below a panel for each device that has steps.

    `rows`: rows of the activity table `timeline` of one run or trace, with times in seconds. At most `MOST_DEVICES`
    devices are shown.
    """
    table = pd.DataFrame(rows)
    devices = table[(table["scope"] != "step") & table["busy_s"].notna()]
    shown = devices.head(MOST_DEVICES)
    names = _device_names(shown, with_report=devices["report"].nunique() > 1)
    steps = _steps_by_name(table[table["scope"] == "step"], shown, names)

    heights = [0.9 + 0.3 * len(shown), *[1.5] * len(steps)]
    figure, panels = plt.subplots(
        len(heights), figsize=(width_in(), sum(heights) + 0.9), height_ratios=heights, squeeze=False
    )
    overview, *panels_of_steps = panels[:, 0]
    _draw_shares(overview, shown, names, left_out=len(devices) - len(shown))
    longest_s = max((device_steps["span_s"].max() for _, device_steps in steps), default=0.0)
    for axes, (name, device_steps) in zip(panels_of_steps, steps, strict=True):
        _draw_steps(axes, device_steps, name)
        # The panels have the same range, so that steps of different devices can be compared.
        axes.set_ylim(0, 1.05e3 * longest_s)
    legend_below(figure, overview)
    return figure


def _steps_by_name(steps: pd.DataFrame, devices: pd.DataFrame, names: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return the name and the steps of each device that has steps. `names`: names of `devices`, in the same order."""
    key = ["report", "process", "device"]
    steps_of_devices = dict(list(steps.groupby(key, sort=False)))
    keys = devices[key].itertuples(index=False, name=None)
    return [
        (name, steps_of_devices[device]) for name, device in zip(names, keys, strict=True) if device in steps_of_devices
    ]


def _draw_shares(axes: Axes, devices: pd.DataFrame, names: list[str], left_out: int) -> None:
    """Draw the parts of each device's time in per cent; `left_out`: number of devices that are not shown."""
    spans_s = devices["span_s"]
    rows = [f"{name} ({show('span_s', span)})" for name, span in zip(names, spans_s, strict=True)]
    shares = device_time(devices).div(spans_s.where(spans_s > 0), axis=0)
    least_visible = 1e-3
    shares = shares.loc[:, shares.max() >= least_visible]
    title = "Share of the capture" if (devices["scope"] == "capture").all() else "Share of the time of all steps"
    if left_out:
        title += f"; {left_out} more devices not shown"
    draw_stacked_bars(axes, rows, dict(shares.items()), GPU_FILLS, title=title, label="Share of time", units=PERCENT)


def _draw_steps(axes: Axes, steps: pd.DataFrame, name: str) -> None:
    """Draw the steps of a device as stacked bars in milliseconds, each bar one step or the mean of neighbours."""
    steps_per_bar = math.ceil(len(steps) / MOST_BARS)
    bars = pd.concat([steps["step"], 1e3 * device_time(steps).fillna(0.0)], axis=1)
    bars = bars.groupby(np.arange(len(bars)) // steps_per_bar).mean()
    bottoms = np.zeros(len(bars))
    for part, fill in GPU_FILLS.items():
        axes.bar(
            bars["step"],
            bars[part],
            0.9 * steps_per_bar,
            bottom=bottoms,
            color=fill.colour,
            hatch=fill.hatch,
            edgecolor="0.2",
            linewidth=0.4,
        )
        bottoms = bottoms + bars[part]
    averaged = f" (each bar: mean of {steps_per_bar})" if steps_per_bar > 1 else ""
    axes.set(title=f"Steps of {name}", xlabel=f"Step{averaged}", ylabel="Time (ms)")
    axes.grid(visible=False, axis="x")
    axes.locator_params(axis="x", integer=True)


def _device_names(devices: pd.DataFrame, with_report: bool) -> list[str]:
    """Return a name for each device, such as "rank 0, device 0"; if the rank is not known, with the process instead."""
    names = []
    columns = ["report", "process", "rank", "device"]
    for report, process, rank, device in devices[columns].itertuples(index=False):
        parts = [for_figure(report, 50)] if with_report else []
        parts.append(f"process {process}" if pd.isna(rank) else f"rank {rank:.0f}")
        parts.append(f"device {device}")
        names.append(", ".join(parts))
    return names
