"""Draw a search: the value of each run and the best value so far, over the time that all runs took."""

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.core.units import ONE, SECONDS, heading, number, unit_for, units_of
from multicard.figures.style import colours, legend_below, mark_synthetic, one_panel, remove_legend, styled
from multicard.stats.interval import Interval


def draw_search(trials: pd.DataFrame, measure: str, best: Interval, question: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure of a search, and `trials` unchanged as the table of its numbers.

    The figure scales numbers to readable units (0.02 s becomes 20 ms); the table and the parameters do not.

    Parameters
    ----------
    trials
        A row for each run, in order: `repeat`, `outcome`, the column that `measure` names (NaN if the run has no
        value), `best_so_far` in the unit of that column, `spent_s` (seconds of this run and all runs before it), and
        `synthetic`.
    measure
        The column that the search optimizes.
    best
        The measure of the best configuration at the end, with its interval over repeats, in the unit of the column.
    question
        The title.
    """
    units = units_of(measure) or ONE
    value_scale, value_unit = unit_for(trials[measure].dropna(), units)
    time_scale, time_unit = unit_for([trials["spent_s"].max()], SECONDS)
    times = time_scale * trials["spent_s"]
    values = value_scale * trials[measure].astype(float)
    best_so_far = value_scale * trials["best_so_far"].astype(float)
    best_colour = colours(3)[2]
    with styled():
        figure, axes = one_panel(3.4)
        axes.step(times, best_so_far, where="post", color=best_colour, label="best so far")
        is_repeat = trials["repeat"] > 1
        _mark_runs(axes, times, values, is_repeat)
        has_no_value = values.isna()
        outcomes = trials.loc[has_no_value, "outcome"]
        _mark_runs_without_value(axes, times[has_no_value], outcomes)
        # Only the runs determine the limits: the interval of two repeats would squeeze them.
        axes.set_ylim(axes.get_ylim())
        if best.low is not None and best.high is not None:
            _shade_interval(axes, value_scale * best.low, value_scale * best.high, best_colour)
        name = heading(measure, value_unit)
        capitalized_name = f"{name[0].upper()}{name[1:]}"
        axes.set_title(question)
        axes.set_xlabel(f"Time of all runs ({time_unit})")
        axes.set_ylabel(capitalized_name)
        axes.set_xlim(0, None)
        if trials["synthetic"].any():
            mark_synthetic(figure, "all")
        legend_below(figure, axes)
    return figure, trials


def _shade_interval(axes: Axes, low: float, high: float, colour: str) -> None:
    """Shade the interval of the best configuration, and state it in the legend."""
    label = f"best, 95% CI ({number(low)} to {number(high)})"
    axes.axhspan(low, high, color=colour, alpha=0.15, linewidth=0, label=label)


def _mark_runs(axes: Axes, times: pd.Series, values: pd.Series, is_repeat: pd.Series) -> None:
    """Mark the value of each run; first runs of a configuration and repeats have different marks."""
    roles = is_repeat.map({False: "first run of a configuration", True: "repeat"})
    sns.scatterplot(x=times, y=values, hue=roles, style=roles, palette=colours(roles.nunique()), ax=axes)
    remove_legend(axes)


def _mark_runs_without_value(axes: Axes, times: pd.Series, outcomes: pd.Series) -> None:
    """Mark the times of runs without a value at the lower edge of the panel."""
    # A plot without marks would still have an entry in the legend.
    if times.empty:
        return
    outcomes_in_words = outcomes.astype(str).str.replace("_", " ")
    words = ", ".join(sorted(outcomes_in_words.unique()))
    axes.plot(
        times,
        [0.02] * len(times),
        color="0.2",
        label=f"no value: {words}",
        linestyle="none",
        marker="x",
        clip_on=False,
        # With this transform the height 0.02 is a share of the panel's height, independent of the values.
        transform=axes.get_xaxis_transform(),
    )
