"""Horizontal bar charts, grouped or stacked; and what other panels share: names of rows, whiskers, dots of repeats."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from multicard.core.units import number_in
from multicard.figures.meanings import Fills
from multicard.figures.style import HATCHES, LINE_IN, SMALLEST_POINTS, colours, filled, is_column

# Inches that the rows of a figure may take so that the figure, with its axis and its legend, fits on a page.
PAGE_IN = 8.5
# Least inches of a row: less, and its name would not be legible in small print.
LOWEST_ROW_IN = 0.15


def height_of(row_count: int, row_in: float = 0.34) -> float:
    """Return the inches that the rows of a figure take: `row_in` for each row, or less if they would not fit on a page.

    A row has at least `LOWEST_ROW_IN`, even if the rows then do not fit.

    >>> height_of(10), height_of(40), height_of(80)
    (3.4000000000000004, 8.5, 12.0)
    """
    return max(min(row_count * row_in, PAGE_IN), row_count * LOWEST_ROW_IN)


def rows_height_in(names: Iterable[str], row_in: float = 0.34) -> float:
    """Return the inches that rows with these names take: a name in a column may need several lines."""
    names = list(names)
    line_count = max((_row_name(name).count("\n") + 1 for name in names), default=1)
    return height_of(len(names), max(row_in, LINE_IN * line_count + 0.05))


def _row_name(name: str) -> str:
    """Return the name of a row in up to three lines, which are shorter in a column."""
    return filled(name, 17 if is_column() else 34)


def draw_grouped_bars(
    axes: Axes, means: pd.DataFrame, runs: pd.DataFrame, group_by: str, column: str, scale: float
) -> None:
    """Draw a group of bars for each value of the column `group_by`, with a bar for each `series` in it.

    Parameters
    ----------
    axes
        The panel to draw in.
    means
        A row per bar, with columns `series`, `repeats`, `outcome`, those that `group_by` and `column` name, and the
        bounds of the interval (`<column>_low`, `<column>_high`), which become whiskers. If a row has no value, its
        outcome is written in the place of the bar.
    runs
        A row per run, with column `series` and those that `group_by` and `column` name. If a bar of a series has
        several repeats, each run of the series is a small dot.
    group_by, column
        Names of the columns with the groups and with the values.
    scale
        Factor from the values to the unit of the axis.
    """
    groups = list(dict.fromkeys(means[group_by]))
    series_names = list(dict.fromkeys(means["series"]))
    # The distance between two groups is 1.
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
        _write_values(axes, positions, bars, column, scale)
        if (bars["repeats"] > 1).any():
            repeats = runs[runs["series"] == name]
            draw_repeats(axes, repeats[column].astype(float) * scale, repeats[group_by].map(groups.index) + offset)
        is_missing = bars[column].isna()
        for position, outcome in zip(positions[is_missing], bars.loc[is_missing, "outcome"], strict=True):
            _note_missing_bar(axes, position, outcome)
    name_rows(axes, groups)
    _leave_space_for_numbers(axes)


def _write_values(axes: Axes, positions: pd.Series, bars: pd.DataFrame, column: str, scale: float) -> None:
    """Write the value of each bar behind its end, or behind its whisker."""
    values = bars[column].astype(float) * scale
    _, whiskers = whisker_lengths(bars, column, scale)
    ends = values + whiskers.fillna(0.0)
    for position, value, end in zip(positions, values, ends, strict=True):
        write_number(axes, end, position, value)


def write_number(axes: Axes, end: float, position: float, value: float) -> None:
    """Write a value behind the end of its bar; nothing for a value that is not known."""
    if np.isnan(value):
        return
    axes.annotate(
        number_in(value),
        (end, position),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALLEST_POINTS,
        color="0.1",
        # On a dot of a repeat, or on a line of the grid, a number could not be read.
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        zorder=5,
    )


def _leave_space_for_numbers(axes: Axes) -> None:
    """Let the axis of lengths end behind the numbers that stand behind bars."""
    axes.set_xlim(0, None)
    share_of_numbers = 0.22 if is_column() else 0.14
    _, end = axes.get_xlim()
    axes.set_xlim(0, end * (1 + share_of_numbers))


def _note_missing_bar(axes: Axes, position: float, outcome: str) -> None:
    """Write in the place of a bar why there is none: its outcome, or that a completed run recorded no value."""
    reason = "not recorded" if outcome == "completed" else outcome.replace("_", " ")
    axes.annotate(
        reason,
        (0, position),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALLEST_POINTS,
        color="0.3",
    )


def draw_stacked_bars(
    axes: Axes,
    names: Sequence[str],
    parts: Mapping[str, Iterable[float]],
    fills: Fills,
    title: str,
    label: str,
    whole: float | None = None,
) -> None:
    """Draw a bar for each name, with its parts one after the other, and its length as a number behind it.

    Parameters
    ----------
    axes
        The panel to draw in.
    names
        Names of the rows.
    parts
        Lengths of each part, one per row, in the unit of the axis; NaN counts as zero. The legend names only parts that
        have a length in any row.
    fills
        Colour and hatch of each part.
    title, label
        Title of the panel, and label of the axis of lengths.
    whole
        Length that all parts of a bar have together, such as 100%. Then larger parts, not the bars, have a number.
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
            if whole is not None:
                _write_parts(axes, starts, lengths, whole)
            starts = starts + lengths
    name_rows(axes, names)
    axes.set(title=title, xlabel=axis_label(label), xlim=(0, whole or starts.max() or 1.0))
    if whole is None:
        for row, length in enumerate(starts):
            write_number(axes, length, row, length)
        _leave_space_for_numbers(axes)


def _write_parts(axes: Axes, starts: np.ndarray, lengths: np.ndarray, whole: float) -> None:
    """Write the length of each part that is long enough into its middle."""
    least_written = whole * (0.12 if is_column() else 0.06)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length >= least_written:
            axes.text(
                start + length / 2,
                row,
                f"{length:.0f}",
                ha="center",
                va="center",
                fontsize=SMALLEST_POINTS,
                # A hatch would make it hard to read.
                bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
            )


def axis_label(text: str) -> str:
    """Return the label of a horizontal axis, in a column on as many lines as it needs beside the names of rows."""
    return filled(text, 30) if is_column() else text


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, with the first row at the top; in small print if rows are low."""
    row_of_small_print_in = 0.2
    axes.set_yticks(range(len(names)), [_row_name(name) for name in names])
    if height_of(len(names)) < row_of_small_print_in * len(names):
        axes.tick_params(axis="y", labelsize=SMALLEST_POINTS)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def draw_repeats(axes: Axes, x: pd.Series, y: pd.Series) -> None:
    """Draw single repeats as small dots, with an entry for the legend."""
    axes.plot(
        x, y, linestyle="none", marker=".", markersize=5, color="0.25", alpha=0.6, zorder=4, label="single repeat"
    )


def whisker_lengths(means: pd.DataFrame, column: str, scale: float) -> tuple[pd.Series, pd.Series]:
    """Return the lengths of whiskers, from each value down and up to the bounds of its interval, times `scale`.

    They are NaN for a value of a single repeat.
    """
    value, low, high = (means[name].astype(float) for name in (column, f"{column}_low", f"{column}_high"))
    has_interval = means["repeats"] > 1
    down = ((value - low) * scale).where(has_interval)
    up = ((high - value) * scale).where(has_interval)
    return down, up
