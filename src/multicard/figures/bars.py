"""Horizontal bar charts, grouped or stacked, with a note in place of a missing bar; rows with names, whiskers, dots."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from multicard.figures.style import HATCHES, Fills, colours, filled

# Height of the rows of a figure that fits on a page, with its axis and its legend.
PAGE_IN = 8.5
# Height of a row whose name in small print is legible.
LOWEST_ROW_IN = 0.15


def height_of(row_count: int, row_in: float = 0.34) -> float:
    """Return the inches that the rows of a figure take: `row_in` for each, or less where a page would not hold them.

    >>> height_of(10), height_of(40), height_of(80)
    (3.4000000000000004, 8.5, 12.0)
    """
    return max(min(row_count * row_in, PAGE_IN), row_count * LOWEST_ROW_IN)


def draw_grouped_bars(
    axes: Axes, means: pd.DataFrame, runs: pd.DataFrame, group_by: str, column: str, scale: float
) -> None:
    """Draw a group of bars for each value of the column `group_by`, with a bar for each `series` in it.

    Parameters
    ----------
    axes
        The panel to draw in.
    means
        A row per bar, with columns `series`, `group_by`, `repeats`, `outcome`, the values in `column` and the bounds of
        their intervals (`<column>_low`, `<column>_high`), which become whiskers. A row without a value has its outcome
        written in the place of the bar.
    runs
        A row per run, with columns `series`, `group_by` and `column`. In a series with several repeats each run is a
        small dot.
    group_by, column
        Columns of the groups and of the values.
    scale
        Factor from the values to the unit of the axis.
    """
    groups = list(dict.fromkeys(means[group_by]))
    series_names = list(dict.fromkeys(means["series"]))
    # Groups are a distance of 1 apart.
    width = min(0.8 / len(series_names), 0.5)
    for index, (name, colour) in enumerate(zip(series_names, colours(len(series_names)), strict=True)):
        offset = (index - (len(series_names) - 1) / 2) * width
        bars = means[means["series"] == name]
        positions = bars[group_by].map(groups.index) + offset
        axes.barh(
            positions,
            bars[column].astype(float) * scale,
            width,
            xerr=whisker_lengths(bars, column, scale),
            error_kw={"capsize": 3, "elinewidth": 1, "ecolor": "0.1"},
            label=name,
            color=colour,
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor="0.2",
            linewidth=0.5,
        )
        if (bars["repeats"] > 1).any():
            repeats = runs[runs["series"] == name]
            draw_repeats(axes, repeats[column].astype(float) * scale, repeats[group_by].map(groups.index) + offset)
        is_missing = bars[column].isna()
        for position, outcome in zip(positions[is_missing], bars.loc[is_missing, "outcome"], strict=True):
            _note_missing_bar(axes, position, outcome)
    name_rows(axes, groups)
    axes.set_xlim(0, None)


def _note_missing_bar(axes: Axes, position: float, outcome: str) -> None:
    """Write in the place of a bar why there is none."""
    reason = "not recorded" if outcome == "completed" else outcome.replace("_", " ")
    axes.annotate(
        reason, (0, position), xytext=(3, 0), textcoords="offset points", va="center", fontsize=5.5, color="0.3"
    )


def draw_stacked_bars(
    axes: Axes, names: Sequence[str], parts: Mapping[str, Iterable[float]], fills: Fills, title: str, label: str
) -> None:
    """Draw a bar for each name, made of parts one after the other.

    Parameters
    ----------
    axes
        The panel to draw in.
    names
        Names of the rows.
    parts
        Lengths of each part, one per row, in the unit of the axis; empty counts as zero. The legend names the parts
        that have a length in any row.
    fills
        Colour and hatch of each part.
    title, label
        Title of the panel, and label of the axis of lengths.
    """
    starts = np.zeros(len(names))
    for part, lengths in parts.items():
        lengths = np.nan_to_num(np.asarray(lengths, dtype=float))
        if lengths.any():
            axes.barh(
                range(len(names)),
                lengths,
                0.7,
                left=starts,
                label=part,
                color=fills[part].colour,
                hatch=fills[part].hatch,
                edgecolor="0.2",
                linewidth=0.4,
            )
            starts = starts + lengths
    name_rows(axes, names)
    axes.set(title=title, xlabel=label, xlim=(0, 1.02 * starts.max() or 1.0))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, the first at the top; in small print where rows are low."""
    characters, row_of_small_print_in = 34, 0.2
    axes.set_yticks(range(len(names)), [filled(name, characters) for name in names])
    if height_of(len(names)) < row_of_small_print_in * len(names):
        axes.tick_params(axis="y", labelsize="x-small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def draw_repeats(axes: Axes, x: pd.Series, y: pd.Series) -> None:
    """Draw single repeats as small dots, which the legend explains."""
    axes.plot(
        x, y, linestyle="none", marker=".", markersize=5, color="0.25", alpha=0.6, zorder=4, label="single repeat"
    )


def whisker_lengths(means: pd.DataFrame, column: str, scale: float) -> tuple[pd.Series, pd.Series]:
    """Return the lengths of whiskers down and up from each value to the bounds of its interval, times `scale`.

    They are empty where there is a single repeat.
    """
    value, low, high = (means[name].astype(float) for name in (column, f"{column}_low", f"{column}_high"))
    has_interval = means["repeats"] > 1
    down = ((value - low) * scale).where(has_interval)
    up = ((high - value) * scale).where(has_interval)
    return down, up
