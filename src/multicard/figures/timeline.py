"""Where the time of each device goes, by its timeline: over the capture or all steps, and step by step."""

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.runs.device_time import device_time
from multicard.core.files import atomic_write
from multicard.core.text import for_figure
from multicard.core.units import show
from multicard.figures.bars import stacked
from multicard.figures.style import WIDTH_IN, Look, legend_below, styled

Rows = list[dict[str, Any]]

MOST_DEVICES = 8
NAME_LENGTH = 50
LEAST = 0.1  # per cent of the time, below which a part is not drawn
MOST_BARS = 60  # steps side by side

LOOK: Look = {
    "compute": ("#0072B2", ""),
    "compute and communication": ("#56B4E9", "///"),
    "exposed communication": ("#D55E00", "\\\\\\"),
    "exposed memory operations": ("#F0E442", "..."),
    "CUDA graphs": ("#009E73", ""),
    "idle (launching)": ("#7F7F7F", "xxx"),
    "idle (allocating)": ("#E69F00", "ooo"),
    "idle (loading code)": ("#B2DF8A", "+++"),
    "idle (synchronizing)": ("#CC79A7", "ooo"),
    "idle (data loading)": ("#FDBF6F", "///"),
    "idle (host in no call)": ("#A6761D", "///"),
    "idle (within a graph)": ("#A6DBC8", "---"),
    "idle (queued)": ("#BFBFBF", "---"),
    "idle (unknown)": ("#F2F2F2", ""),
}


def draw_timeline(rows: Rows, path: Path) -> None:
    """Draw the rows of a timeline table into a PNG."""
    with styled():
        figure = timeline(rows)
        with atomic_write(path) as temporary:
            figure.savefig(temporary)
        plt.close(figure)


def timeline(rows: Rows) -> Figure:
    """One bar per device for the capture or all steps, then the steps of each device, if there are any."""
    table = pd.DataFrame(rows)
    every = table[(table["scope"] != "step") & table["busy_s"].notna()]
    shown = every.head(MOST_DEVICES)
    place = ["report", "process", "device"]
    of_steps = dict(list(table[table["scope"] == "step"].groupby(place, sort=False)))
    steps = {at: of_steps[key] for at, key in enumerate(shown[place].itertuples(index=False)) if tuple(key) in of_steps}
    names = _names(shown, several=every["report"].nunique() > 1)

    heights = [0.9 + 0.3 * len(shown), *[1.5] * len(steps)]
    figure, panels = plt.subplots(
        len(heights), figsize=(WIDTH_IN, sum(heights) + 0.9), height_ratios=heights, squeeze=False
    )
    first, *rest = panels[:, 0]
    spans = [f"{name} ({show('span_s', span)})" for name, span in zip(names, shown["span_s"], strict=True)]
    shares = 100 * device_time(shown).div(shown["span_s"].where(shown["span_s"] > 0), axis=0)
    shares = shares.loc[:, shares.max() >= LEAST]
    what = "capture" if (shown["scope"] == "capture").all() else "time of all steps"
    left_out = len(every) - len(shown)
    title = f"Share of the {what}{f'; {left_out} more devices not shown' if left_out else ''}"
    stacked(first, spans, shares, LOOK, title, "Share of time (%)")
    first.set_xlim(0, 100)
    longest = max((own["span_s"].max() for own in steps.values()), default=0.0)
    for axes, (at, own) in zip(rest, steps.items(), strict=True):
        each = math.ceil(len(own) / MOST_BARS)  # neighbours are averaged
        bars = pd.concat([own["step"], 1e3 * device_time(own).fillna(0.0)], axis=1)
        bars = bars.groupby(np.arange(len(bars)) // each).mean()
        reached = np.zeros(len(bars))
        for part, (colour, hatch) in LOOK.items():
            look = {"color": colour, "hatch": hatch, "edgecolor": "0.2", "linewidth": 0.4}
            axes.bar(bars["step"], bars[part], 0.9 * each, bottom=reached, **look)
            reached = reached + bars[part]
        mean = f" (each bar: mean of {each})" if each > 1 else ""
        axes.set(title=f"Steps of {names[at]}", xlabel=f"Step{mean}", ylabel="Time (ms)", ylim=(0, 1.05e3 * longest))
        axes.grid(visible=False, axis="x")
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, first)
    return figure


def _names(rows: pd.DataFrame, several: bool) -> list[str]:
    """Name of each device, with its report where there are `several`."""
    return [
        (f"{for_figure(report, NAME_LENGTH)}, " if several else "")
        + (f"process {process}" if pd.isna(rank) else f"rank {rank:.0f}")
        + f", device {device}"
        for report, process, rank, device in rows[["report", "process", "rank", "device"]].itertuples(index=False)
    ]
