"""The way of a search: what each of its runs gave, and the best so far, over what they took."""

import re

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.statistics import Interval
from multicard.core.units import SECONDS, heading, number, unit_for, units_of
from multicard.figures.style import MARKERS, WIDTH_IN, colours, legend_below, note_above, styled


def draw_search(trials: pd.DataFrame, measure: str, found: Interval, question: str) -> tuple[Figure, pd.DataFrame]:
    """Draw a search, and give the table of the numbers shown.

    Parameters
    ----------
    trials
        A row for each run, in order: `repeat`, `outcome`, the measure, `best_so_far`, `spent_s` after it, `synthetic`.
    found
        The measure of the best configuration at the end, over its repeats.
    """
    with styled():
        return _draw(trials, measure, found, question), trials


def _draw(trials: pd.DataFrame, measure: str, found: Interval, question: str) -> Figure:
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
    new, again, best = colours(3)
    units = units_of(measure)
    scale, unit = unit_for(trials[measure].dropna(), units) if units and not measure.endswith("_per_s") else (1.0, "")
    per_time, time_unit = unit_for([trials["spent_s"].max()], SECONDS)
    time, value = per_time * trials["spent_s"], scale * trials[measure].astype(float)
    axes.step(time, scale * trials["best_so_far"].astype(float), where="post", color=best, label="best so far")
    kinds = {"first run of a configuration": (trials["repeat"] == 1, new), "repeat": (trials["repeat"] > 1, again)}
    for (label, (rows, colour)), marker in zip(kinds.items(), MARKERS, strict=False):
        if (rows & value.notna()).any():
            axes.plot(time[rows], value[rows], linestyle="none", marker=marker, markersize=4, color=colour, label=label)
    for (outcome, rows), marker in zip(trials[value.isna()].groupby("outcome"), ("x", "+", "1", "2"), strict=False):
        label = f"no value: {str(outcome).replace('_', ' ')}"
        where = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot(
            time[rows.index], [0.02] * len(rows), linestyle="none", marker=marker, color="0.2", label=label, **where
        )
    axes.set_ylim(axes.get_ylim())  # of the runs, or the interval of two of them would squeeze these
    if found.low is not None:
        low, high = scale * found.low, scale * found.high
        label = f"best, 95% interval ({number(low)} to {number(high)})"
        axes.axhspan(low, high, color=best, alpha=0.15, linewidth=0, label=label)
    axes.set(title=question, xlabel=f"Time of all runs ({time_unit})", xlim=(0, None))
    rate = re.fullmatch(r"(?:.*_)?(\w+)_per_s", measure)
    name = f"throughput ({rate[1]}/s)" if rate else heading(measure, unit)
    axes.set_ylabel(f"{name[0].upper()}{name[1:]}")
    note_above(figure, ["Synthetic"] if trials["synthetic"].any() else [])
    legend_below(figure, axes)
    return figure
