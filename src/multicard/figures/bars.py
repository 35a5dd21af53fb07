"""Horizontal bar charts, grouped or stacked; and what other panels share: names of rows, whiskers, dots of repeats."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from multicard.core.text import for_figure
from multicard.core.units import BYTES, PERCENT, SECONDS, Units, number_in, unit_for
from multicard.figures.marks import id_of_bar
from multicard.figures.meanings import Fills
from multicard.figures.style import HATCHES, LINE_IN, NUMBER_BOX, SMALLEST_POINTS, colours, filled, is_column

# Inches that the rows of a figure may take so that the figure, with its axis and its legend, fits on a page.
PAGE_IN = 8.5
# Least inches of a row: less, and its name would not be legible in small print.
LOWEST_ROW_IN = 0.15
# A whisker is cut if it goes beyond so many times the largest bar or dot.
LONGEST_WHISKER = 2.0
# Endings of names of columns whose values have these units (`core.units.UNITS`).
ENDINGS = {SECONDS: "_s", BYTES: "_bytes", PERCENT: "_share"}


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
        bounds of the interval (`<column>_low`, `<column>_high`), which become whiskers. A whisker that would be much
        longer than all bars is cut: it ends in an arrow, and its interval is written beside the value. If a row has no
        value, its outcome is written in the place of the bar.
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
    longest = LONGEST_WHISKER * _largest(means, runs, column) * scale
    have_intervals = False
    for index, (name, colour) in enumerate(zip(series_names, colours(len(series_names)), strict=True)):
        offset = (index - (len(series_names) - 1) / 2) * width
        bars = means[means["series"] == name]
        positions = bars[group_by].map(groups.index) + offset
        values = bars[column].astype(float) * scale
        down, up = whisker_lengths(bars, column, scale)
        is_cut = values + up > longest
        up = up.mask(is_cut, longest - values)
        container = axes.barh(
            positions,
            values,
            width,
            xerr=(down, up),
            error_kw={"capsize": 3, "elinewidth": 1, "ecolor": "0.1"},
            label=name,
            color=colour,
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor="0.2",
            linewidth=0.5,
        )
        _keep_numbers(container, [_id_of_grouped_bar(bar, group_by, column) for bar in bars.to_dict("records")])
        if is_cut.any():
            have_intervals = True
            arrows = [longest] * is_cut.sum()
            axes.plot(arrows, positions[is_cut], marker=">", markersize=5, color="0.1", linestyle="none")
        # Only where a whisker is cut, its interval is written beside the value.
        bounds = bars[[f"{column}_low", f"{column}_high"]].astype(float) * scale
        _write_values(axes, positions, values, values + up.fillna(0.0), bounds.where(is_cut))
        if (bars["repeats"] > 1).any():
            repeats = runs[runs["series"] == name]
            draw_repeats(axes, repeats[column].astype(float) * scale, repeats[group_by].map(groups.index) + offset)
        is_missing = bars[column].isna()
        for position, outcome in zip(positions[is_missing], bars.loc[is_missing, "outcome"], strict=True):
            _note_missing_bar(axes, position, outcome)
    name_rows(axes, groups)
    _leave_space_for_numbers(axes, have_intervals)


def _id_of_grouped_bar(bar: Mapping[Hashable, Any], group_by: str, column: str) -> str | None:
    """Return the id that keeps the numbers of a bar; None for a bar without a value. `bar`: its row of the means."""
    value = float("nan") if bar[column] is None else float(bar[column])
    if np.isnan(value):
        return None
    # Bars of a single series are named by their groups alone.
    has_name = not bar["series"].startswith("_")
    name = f"{bar[group_by]}, {bar['series']}" if has_name else bar[group_by]
    return id_of_bar(column, name, bar["repeats"], value, bar[f"{column}_low"], bar[f"{column}_high"])


def _keep_numbers(container: BarContainer, ids: Iterable[str | None]) -> None:
    """Give each bar the id that keeps its numbers; one whose id is None has no length, and keeps none."""
    for patch, id_of_patch in zip(container.patches, ids, strict=True):
        if id_of_patch is not None:
            patch.set_gid(id_of_patch)


def _write_values(axes: Axes, positions: pd.Series, values: pd.Series, ends: pd.Series, bounds: pd.DataFrame) -> None:
    """Write the value of each bar behind its end, or that of its whisker, with its interval if that is among `bounds`.

    `bounds`: the lower and the upper bound of each bar; NaN for an interval that is not written.
    """
    intervals = bounds.itertuples(index=False, name=None)
    for position, value, end, (low, high) in zip(positions, values, ends, intervals, strict=True):
        if np.isnan(high):
            write_number(axes, end, position, value)
        else:
            write_number(axes, end, position, value, low, high)


def _largest(means: pd.DataFrame, runs: pd.DataFrame, column: str) -> float:
    """Return the largest value of a bar or a dot; infinity if there is none."""
    values = pd.concat([means[column], runs[column]]).astype(float)
    return float(values.max()) if values.notna().any() else math.inf


def write_number(
    axes: Axes, end: float, position: float, value: float, low: float | None = None, high: float | None = None
) -> None:
    """Write a value, with its interval if it has one, behind the end of its bar; nothing if the value is not known."""
    if np.isnan(value):
        return
    text = number_in(value, low, high)
    axes.annotate(
        # In a column the interval has a line of its own.
        text.replace(" [", "\n[") if is_column() else text,
        (end, position),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALLEST_POINTS,
        color="0.1",
        bbox=NUMBER_BOX,
        zorder=5,
    )


def _leave_space_for_numbers(axes: Axes, have_intervals: bool = False) -> None:
    """Let the axis of lengths end behind the numbers that stand behind bars, which may have intervals."""
    axes.set_xlim(0, None)
    share_of_numbers = 0.22 if is_column() else 0.14
    if have_intervals:
        share_of_numbers = 0.5 if is_column() else 0.28
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
    *,
    title: str,
    label: str,
    units: Units,
    repeats: Iterable[int] | None = None,
    totals: pd.DataFrame | None = None,
) -> None:
    """Draw a bar for each name, with its parts one after the other.

    Shares have their numbers in the larger parts. Other bars have their length as a number behind them.

    Parameters
    ----------
    axes
        The panel to draw in.
    names
        Names of the rows.
    parts
        Sizes of each part, one per row: seconds, bytes, or shares from 0 to 1. NaN counts as zero; a row without any
        number is not recorded. The legend names only parts that have a size in any row.
    fills
        Colour and hatch of each part.
    title, label
        Title of the panel, and label of the axis of lengths without its unit.
    units
        `SECONDS`, `BYTES`, or `PERCENT` for shares. The longest bar decides which of them the axis has.
    repeats
        Number of repeats of each row, which a page shows with the size of a part; None if they are not known.
    totals
        The mean length of each row with its interval, which is written behind the bar: columns `value`, `low` and
        `high`. None to write the sum of the parts.
    """
    stated = {part: np.asarray(values, dtype=float) for part, values in parts.items()}
    is_recorded = pd.DataFrame(stated).notna().any(axis=1)
    sizes = {part: np.nan_to_num(values) for part, values in stated.items()}
    scale, unit = unit_for(sum(sizes.values()), units)
    is_of_shares = units is PERCENT
    starts = np.zeros(len(names))
    for part, sizes_of_rows in sizes.items():
        if not sizes_of_rows.any():
            continue
        lengths = sizes_of_rows * scale
        container = axes.barh(
            range(len(names)),
            lengths,
            0.7,
            left=starts,
            label=for_figure(part, 40),
            color=fills[part].colour,
            hatch=fills[part].hatch,
            edgecolor="0.2",
            linewidth=0.4,
        )
        if repeats is not None:
            column = f"{part}{ENDINGS[units]}"
            rows = zip(names, repeats, sizes_of_rows, strict=True)
            _keep_numbers(container, [id_of_bar(column, *row) if row[-1] > 0 else None for row in rows])
        if is_of_shares:
            _write_parts(axes, starts, lengths, scale)
        starts = starts + lengths
    name_rows(axes, names)
    end = scale if is_of_shares else starts.max() or 1.0
    axes.set(title=title, xlabel=axis_label(f"{label} ({unit})"), xlim=(0, end))
    if not is_of_shares:
        _write_totals(axes, starts, is_recorded, None if totals is None else totals * scale)


def _write_totals(axes: Axes, lengths: np.ndarray, is_recorded: pd.Series, totals: pd.DataFrame | None) -> None:
    """Write behind each bar its mean length with its interval, or its length if no mean is known.

    The interval is text and no whisker, since that of few repeats may be many times as long as the bar.
    """
    has_intervals = False
    for row, length in enumerate(lengths):
        if not is_recorded.iloc[row]:
            _note_missing_bar(axes, row, "completed")
        elif totals is None or pd.isna(totals["value"].iloc[row]):
            write_number(axes, length, row, length)
        else:
            value, low, high = totals[["value", "low", "high"]].iloc[row]
            write_number(axes, length, row, value, low, high)
            has_intervals = has_intervals or pd.notna(low)
    _leave_space_for_numbers(axes, has_intervals)


def _write_parts(axes: Axes, starts: np.ndarray, lengths: np.ndarray, whole: float) -> None:
    """Write the length of each part that is long enough into its middle. `whole`: length of all parts of a bar."""
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
