"""Where the time of each device goes, by its timeline: over the capture or all steps, and step by step."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.runs.device_time import PARTS, device_time
from multicard.core.files import atomic_write
from multicard.core.text import for_figure
from multicard.core.units import show
from multicard.figures.bars import stacked, stacked_rows
from multicard.figures.style import WIDTH_IN, legend_below, styled

Rows = list[dict[str, Any]]

MOST_DEVICES = 8
NAME_LENGTH = 50
MOST_BARS = 60  # steps side by side; neighbours are averaged beyond that

# Colour and hatch of each part.
LOOKS: dict[str, tuple[str, str]] = dict(
    zip(
        PARTS,
        (
            ("#0072B2", ""),
            ("#56B4E9", "///"),
            ("#D55E00", "\\\\\\"),
            ("#F0E442", "..."),
            ("#7F7F7F", "xxx"),
            ("#CC79A7", "ooo"),
            ("#BFBFBF", "---"),
            ("#F2F2F2", ""),
        ),
        strict=True,
    )
)


def draw_timeline(rows: Rows, path: Path) -> None:
    """Draw the rows of a timeline table into a PNG."""
    with styled():
        figure = timeline(rows)
        with atomic_write(path) as temporary:
            figure.savefig(temporary)
        plt.close(figure)


def timeline(rows: Rows) -> Figure:
    """One bar per device for the capture or all steps, then the steps of each device, if there are any."""
    captures = [row for row in rows if row["scope"] != "step" and row["busy_s"] is not None]
    shown = captures[:MOST_DEVICES]
    steps = [(row, own) for row in shown if (own := _steps(rows, row))]
    heights = [0.9 + 0.3 * len(shown), *[1.5] * len(steps)]
    figure, panels = plt.subplots(
        len(heights), figsize=(WIDTH_IN, sum(heights) + 0.9), height_ratios=heights, squeeze=False
    )
    axes = panels[:, 0]
    names = list(dict.fromkeys(row["report"] for row in captures))
    several = len(names) > 1
    left_out = len(captures) - len(shown)
    more = f"; {left_out} more devices not shown" if left_out else ""
    reports = f"{len(names)} reports" if several else for_figure(names[0], NAME_LENGTH)
    what = "capture" if all(row["scope"] == "capture" for row in shown) else "time of all steps"
    _bars(axes[0], shown, several, f"Share of the {what}, {reports}{more}")
    for axis, (row, own) in zip(axes[1:], steps, strict=True):
        _columns(axis, own)
        axis.set_ylim(0, 1.05e3 * max(step["span_s"] for _, every in steps for step in every))
        axis.set_title(f"Steps of {_name(row, several)}")
    legend_below(figure, *axes)
    return figure


def _name(row: dict[str, Any], several: bool) -> str:
    process = f"rank {row['rank']}" if row["rank"] is not None else f"process {row['process']}"
    report = f"{for_figure(row['report'], NAME_LENGTH)}, " if several else ""
    return f"{report}{process}, device {row['device']}"


def _steps(rows: Rows, capture: dict[str, Any]) -> Rows:
    place = ("report", "process", "device")
    return [r for r in rows if r["scope"] == "step" and all(r[name] == capture[name] for name in place)]


def _bars(axes: Axes, captures: Rows, several: bool, title: str) -> None:
    names = [f"{_name(row, several)} ({show('span_s', row['span_s'])})" for row in captures]
    table = pd.DataFrame(captures)
    shares = device_time(table).div(table["span_s"].where(table["span_s"] > 0), axis=0).fillna(0.0)
    stacked_rows(axes, names, dict(100 * shares), LOOKS, title, "Share of time (%)")
    axes.set_xlim(0, 100)


def _columns(axes: Axes, steps: Rows) -> None:
    groups = np.array_split(np.arange(len(steps)), min(len(steps), MOST_BARS))
    each = 1e3 * device_time(pd.DataFrame(steps))
    middles = [np.mean([steps[i]["step"] for i in group]) for group in groups]
    widths = [0.9 * len(group) for group in groups]
    means = {part: [each[part].iloc[group].mean() for group in groups] for part in PARTS}
    stacked(axes, middles, means, LOOKS, widths)
    most = max(len(group) for group in groups)
    axes.grid(visible=False, axis="x")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(
        xlabel="Step" if most == 1 else f"Step (each bar: mean of up to {most})",
        ylabel="Time (ms)",
        xlim=(steps[0]["step"] - 0.6, steps[-1]["step"] + 0.6),
    )
