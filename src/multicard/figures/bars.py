"""Lying bars: in groups side by side, or stacked from parts; and a word where there is nothing to draw."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from multicard.figures.style import ERROR_BARS, HATCHES, Look, colours, filled

PAGE_IN = 8.5  # for the rows of a figure, so that it fits on a page with its axis and legend
LEAST_IN = 0.15  # of a row, so that its name in small print is legible
SMALL_IN = 0.2  # below which names are in small print
NAME_WIDTH = 34  # characters of a line of a name beside an axis
GROUP, WIDEST = 0.8, 0.5  # of a group and of a single bar, in distances between groups


def height_of(rows: int, each: float = 0.34) -> float:
    """Inches that the rows of a figure take: `each`, or as much as a page has for them.

    >>> height_of(10), height_of(40), height_of(80)
    (3.4000000000000004, 8.5, 12.0)
    """
    return max(min(rows * each, PAGE_IN), rows * LEAST_IN)


def grouped(axes: Axes, data: pd.DataFrame, by: str, value: str, scale: float, runs: pd.DataFrame) -> None:
    """Draw one group of bars per value of `by`, with one bar per `series`; whiskers are the interval over repeats.

    A row of `data` without a value shows its `outcome` in the place of the bar. Each of the `runs`, with the same
    columns, is a small dot where there are several.
    """
    groups, names = list(dict.fromkeys(data[by])), list(dict.fromkeys(data["series"]))
    width = min(GROUP / len(names), WIDEST)
    for index, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        rows, own = (each[each["series"] == name] for each in (data, runs))
        shift = (index - (len(names) - 1) / 2) * width
        where = rows[by].map(groups.index) + shift
        axes.barh(
            where, rows[value].astype(float) * scale, width, xerr=whiskers(rows, value, scale), error_kw=ERROR_BARS,
            label=name, color=colour, hatch=HATCHES[index % len(HATCHES)], edgecolor="0.2", linewidth=0.5,
        )  # fmt: skip
        if (rows["repeats"] > 1).any():
            dots(axes, own[value].astype(float) * scale, own[by].map(groups.index) + shift)
        for place, (_, row) in zip(where, rows.iterrows(), strict=True):
            if pd.isna(row[value]):
                absent(axes, place, row["outcome"])
    name_rows(axes, groups)
    axes.set_xlim(0, None)


def stacked(
    axes: Axes, names: Sequence[str], parts: Mapping[str, Iterable[float]], look: Look, title: str, label: str
) -> None:
    """Draw a bar for each name, made of `parts` one after the other; empty counts as nothing.

    The title is of the panel, the label of the axis of values. The legend has the parts that have a length.
    """
    reached = np.zeros(len(names))
    for part, each in parts.items():
        lengths = np.nan_to_num(np.asarray(each, dtype=float))
        if lengths.any():
            colour, hatch = look[part]
            axes.barh(
                range(len(names)), lengths, 0.7, left=reached,
                label=part, color=colour, hatch=hatch, edgecolor="0.2", linewidth=0.4,
            )  # fmt: skip
            reached = reached + lengths
    name_rows(axes, names)
    axes.set(title=title, xlabel=label, xlim=(0, 1.02 * reached.max() or 1.0))


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a panel, which go downwards."""
    axes.set_yticks(range(len(names)), [filled(name, NAME_WIDTH) for name in names])
    if height_of(len(names)) < SMALL_IN * len(names):
        axes.tick_params(axis="y", labelsize="x-small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def dots(axes: Axes, x: Iterable[float], y: Iterable[float]) -> None:
    """Draw single repeats."""
    axes.plot(
        x, y, linestyle="none", marker=".", markersize=5, color="0.25", alpha=0.6, zorder=4, label="single repeat"
    )


def absent(axes: Axes, place: float, outcome: str) -> None:
    """Say in the place of a bar why there is none."""
    why = "not recorded" if outcome == "completed" else outcome.replace("_", " ")
    axes.annotate(why, (0, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=5.5, color="0.3")


def whiskers(rows: pd.DataFrame, value: str, scale: float) -> list[pd.Series]:
    """Lengths of whiskers down and up to the interval over repeats; none where there is one repeat only."""
    middle, several = rows[value].astype(float), rows["repeats"] > 1
    low, high = (rows[f"{value}_{end}"].astype(float) for end in ("low", "high"))
    return [((middle - low) * scale).where(several), ((high - middle) * scale).where(several)]
