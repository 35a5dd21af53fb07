"""Draw a search: the value of each of its runs and the best so far, over the time of all runs."""

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.core.units import SECONDS, heading, number, unit_for, units_of
from multicard.figures.style import WIDTH_IN, colours, legend_below, note_above, styled
from multicard.stats.interval import Interval


def draw_search(trials: pd.DataFrame, measure: str, best: Interval, question: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure of a search, and the table of the numbers shown.

    Parameters
    ----------
    trials
        A row for each run, in order: `repeat`, `outcome`, the measure, `best_so_far`, `spent_s` after it, `synthetic`.
    measure
        The column that the search optimizes.
    best
        The measure of the best configuration at the end, over its repeats.
    question
        The title.
    """
    with styled():
        return _draw(trials, measure, best, question), trials


def _draw(trials: pd.DataFrame, measure: str, best: Interval, question: str) -> Figure:
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.4))
    value_scale, value_unit = unit_for(trials[measure].dropna(), units_of(measure) or ((1.0, ""),))
    time_scale, time_unit = unit_for([trials["spent_s"].max()], SECONDS)
    times = time_scale * trials["spent_s"]
    values = value_scale * trials[measure].astype(float)
    best_colour = colours(3)[2]
    best_so_far = value_scale * trials["best_so_far"].astype(float)
    axes.step(times, best_so_far, where="post", color=best_colour, label="best so far")
    roles = trials["repeat"].gt(1).map({False: "first run of a configuration", True: "repeat"})
    sns.scatterplot(x=times, y=values, hue=roles, style=roles, palette=colours(roles.nunique()), ax=axes)
    _remove_legend(axes)
    _mark_lost(axes, times[values.isna()], trials.loc[values.isna(), "outcome"])
    # The limits are those of the runs: the interval of only two repeats would squeeze them.
    axes.set_ylim(axes.get_ylim())
    if best.low is not None and best.high is not None:
        low, high = value_scale * best.low, value_scale * best.high
        label = f"best, 95% CI ({number(low)} to {number(high)})"
        axes.axhspan(low, high, color=best_colour, alpha=0.15, linewidth=0, label=label)
    name = heading(measure, value_unit)
    axes.set(title=question, xlabel=f"Time of all runs ({time_unit})", ylabel=f"{name[0].upper()}{name[1:]}")
    axes.set_xlim(0, None)
    note_above(figure, ["Synthetic"] if trials["synthetic"].any() else [])
    legend_below(figure, axes)
    return figure


def _remove_legend(axes: Axes) -> None:
    """Remove the legend that seaborn put into the axes: there is one below the figure."""
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()


def _mark_lost(axes: Axes, times: pd.Series, outcomes: pd.Series) -> None:
    """Mark the times of runs without a value at the lower edge."""
    if times.empty:
        return
    words = ", ".join(sorted(outcomes.astype(str).str.replace("_", " ").unique()))
    axes.plot(
        times, [0.02] * len(times), color="0.2", label=f"no value: {words}", linestyle="none", marker="x",
        clip_on=False, transform=axes.get_xaxis_transform(),
    )  # fmt: skip
