"""The way of a search: what each of its runs gave, and the best so far, over what they took."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from multicard.core.units import SECONDS, heading, number, unit_for, units_of
from multicard.figures.style import WIDTH_IN, colours, legend_below, note_above, styled
from multicard.stats.interval import Interval


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
    scale, unit = unit_for(trials[measure].dropna(), units_of(measure) or ((1.0, ""),))
    per_time, time_unit = unit_for([trials["spent_s"].max()], SECONDS)
    time, value = per_time * trials["spent_s"], scale * trials[measure].astype(float)
    best = colours(3)[2]
    axes.step(time, scale * trials["best_so_far"].astype(float), where="post", color=best, label="best so far")
    kinds = trials["repeat"].gt(1).map({False: "first run of a configuration", True: "repeat"})
    sns.scatterplot(x=time, y=value, hue=kinds, style=kinds, palette=colours(kinds.nunique()), ax=axes)
    axes.get_legend().remove()
    lost = value.isna()
    if lost.any():
        outcomes = ", ".join(sorted(trials.loc[lost, "outcome"].astype(str).str.replace("_", " ").unique()))
        where = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none", "marker": "x"}
        axes.plot(time[lost], [0.02] * lost.sum(), color="0.2", label=f"no value: {outcomes}", **where)
    axes.set_ylim(axes.get_ylim())  # of the runs, or the interval of two of them would squeeze these
    if found.low is not None:
        low, high = scale * found.low, scale * found.high
        label = f"best, 95% CI ({number(low)} to {number(high)})"
        axes.axhspan(low, high, color=best, alpha=0.15, linewidth=0, label=label)
    name = heading(measure, unit)
    axes.set(title=question, xlabel=f"Time of all runs ({time_unit})", ylabel=f"{name[0].upper()}{name[1:]}")
    axes.set_xlim(0, None)
    note_above(figure, ["Synthetic"] if trials["synthetic"].any() else [])
    legend_below(figure, axes)
    return figure
