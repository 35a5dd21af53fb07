"""Bars: side by side in groups, or stacked from parts; and a word where there is nothing to draw."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from multicard.figures.style import HATCHES, Colour, colours

PAGE_IN = 8.5  # for the rows of a figure, so that it fits on a page with its axis and legend
LEAST_IN = 0.15  # of a row, so that its name in small print is legible
SMALL_IN = 0.2  # below which names are in small print

GROUP = 0.8  # width of a group, in distances between groups
WIDEST = 0.5  # of a single bar


Places = dict[tuple[str, str], float]


def height_of(rows: int, each: float = 0.34) -> float:
    """Inches that the rows of a figure take: `each`, or as much as a page has for them.

    >>> height_of(10), height_of(40), height_of(80)
    (3.4000000000000004, 8.5, 12.0)
    """
    return max(min(rows * each, PAGE_IN), rows * LEAST_IN)


def places(groups: Sequence[str], names: Sequence[str]) -> tuple[Places, float]:
    """Where the bar of each group and series stands, groups being at 0, 1, 2 …; and how wide it is."""
    width = min(GROUP / len(names), WIDEST)
    middle = (len(names) - 1) / 2
    found = {
        (group, name): at + (index - middle) * width
        for at, group in enumerate(groups)
        for index, name in enumerate(names)
    }
    return found, width


def grouped(
    axes: Axes,
    data: pd.DataFrame,
    by: str,
    value: str,
    scale: float = 1.0,
    horizontal: bool = False,
    palette: Sequence[Colour] | None = None,
    runs: pd.DataFrame | None = None,
) -> None:
    """Draw one group of bars per value of `by`, with one bar per `series`; whiskers are the interval over repeats.

    A row of `data` without a value shows its `outcome` in the place of the bar. Horizontal groups go downwards.

    Parameters
    ----------
    axes
        Where to draw.
    data
        One row per bar, as `series.configurations` gives them.
    by
        Column of the groups.
    value
        Column to draw; `<value>_low` and `<value>_high` are its interval.
    scale
        What the values are multiplied by, for the unit of the axis.
    horizontal
        Whether bars lie.
    palette
        Colours of the series; None for those of `style.colours`.
    runs
        A row per run with the same columns, of which each is a small dot where there are several.
    """
    groups, names = list(dict.fromkeys(data[by])), list(dict.fromkeys(data["series"]))
    at, width = places(groups, names)
    for index, (name, colour) in enumerate(zip(names, palette or colours(len(names)), strict=True)):
        rows = data[data["series"] == name]
        where = [at[group, name] for group in rows[by]]
        lengths = rows[value].astype(float) * scale
        (axes.barh if horizontal else axes.bar)(
            where,
            lengths,
            width,
            **{"xerr" if horizontal else "yerr": whiskers(rows, value, scale)},
            error_kw={"capsize": min(3, 12 * width), "elinewidth": 1, "ecolor": "0.1"},
            label=name,
            color=colour,
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor="0.2",
            linewidth=0.5,
        )
        if runs is not None and (rows["repeats"] > 1).any():
            own = runs[runs["series"] == name]
            dots(axes, [at[group, name] for group in own[by]], own[value].astype(float) * scale, horizontal)
        for place, (_, row) in zip(where, rows.iterrows(), strict=True):
            if pd.isna(row[value]):
                absent(axes, place, row, horizontal)
    group_axis(axes, groups, horizontal, known=data[value].notna().any())


def stacked(
    axes: Axes,
    where: Iterable[float],
    parts: Mapping[str, Iterable[float]],
    look: Mapping[str, tuple[str, str]],
    width: float | Iterable[float] = 0.7,
    horizontal: bool = False,
) -> None:
    """Draw a bar at each place of `where`, made of `parts` one upon the other.

    Parameters
    ----------
    axes
        Where to draw.
    where
        Places of the bars.
    parts
        Lengths of each part, one per bar; empty counts as nothing, and a part without any length is left out.
    look
        Colour and hatch of each part.
    width
        Of a bar, or of each.
    horizontal
        Whether bars lie.
    """
    where = list(where)
    reached = np.zeros(len(where))
    for part, lengths in parts.items():
        lengths = np.nan_to_num(np.asarray(lengths, dtype=float))
        if not lengths.any():  # the legend names what is drawn only
            continue
        colour, hatch = look[part]
        (axes.barh if horizontal else axes.bar)(
            where,
            lengths,
            width,
            **{"left" if horizontal else "bottom": reached},
            label=part,
            color=colour,
            hatch=hatch,
            edgecolor="0.2",
            linewidth=0.4,
        )
        reached = reached + lengths


def stacked_rows(
    axes: Axes,
    names: Sequence[str],
    parts: Mapping[str, Iterable[float]],
    look: Mapping[str, tuple[str, str]],
    title: str,
    label: str,
) -> None:
    """Draw a lying bar of `stacked` parts for each name; title and label are of the panel and of the axis of values."""
    stacked(axes, range(len(names)), parts, look, horizontal=True)
    group_axis(axes, names, horizontal=True)
    axes.set(title=title, xlabel=label)


def row_repeats(axes: Axes, data: pd.DataFrame, runs: pd.DataFrame, value: str, scale: float) -> None:
    """Draw the interval and the single repeats of a value at the lying bar of each row's `configuration`."""
    look = {"linestyle": "none", "capsize": 3, "elinewidth": 1, "ecolor": "0.1", "label": "_"}
    at = {name: place for place, name in enumerate(data["configuration"])}
    axes.errorbar(data[value] * scale, list(at.values()), xerr=whiskers(data, value, scale), **look)
    several = set(data["configuration"][data["repeats"] > 1])
    own = runs[runs["configuration"].isin(several)]
    if len(own):
        dots(axes, own["configuration"].map(at), own[value].astype(float) * scale, horizontal=True)


def dots(axes: Axes, places: Iterable[float], values: Iterable[float], horizontal: bool = False) -> None:
    """Draw the values of single repeats at the places of their means."""
    look = {"linestyle": "none", "marker": ".", "markersize": 5, "color": "0.25", "alpha": 0.6, "zorder": 4}
    axes.plot(*((values, places) if horizontal else (places, values)), label="single repeat", **look)


def absent(axes: Axes, place: float, row: pd.Series, horizontal: bool = False) -> None:
    """Say in the place of a bar why there is none."""
    axes.annotate(
        missing(row["outcome"]),
        (0, place) if horizontal else (place, 0),
        xytext=(3, 0) if horizontal else (0, 3),
        textcoords="offset points",
        rotation=0 if horizontal else 90,
        ha="left" if horizontal else "center",
        va="center" if horizontal else "bottom",
        fontsize=5.5,
        color="0.3",
    )


def missing(outcome: str) -> str:
    """Word why there is no bar of a configuration with this outcome."""
    return "not recorded" if outcome == "completed" else outcome.replace("_", " ")


def group_axis(axes: Axes, groups: Sequence[str], horizontal: bool = False, known: bool = True) -> None:
    """Name the groups on one axis, and begin the other at zero; it has no numbers where no value is `known`."""
    limits = (-0.5, len(groups) - 0.5)
    if horizontal:
        axes.set_yticks(range(len(groups)), groups)
        if height_of(len(groups)) < SMALL_IN * len(groups):
            axes.tick_params(axis="y", labelsize="x-small")
        axes.set(ylim=limits[::-1], xlim=(0, None))
    else:
        axes.set_xticks(range(len(groups)), groups)
        axes.set(xlim=limits, ylim=(0, None))
    axes.grid(visible=False, axis="y" if horizontal else "x")
    if not known:
        (axes.set_xticks if horizontal else axes.set_yticks)([])


def limits(points: Iterable[float], low: float, high: float, repeats: Iterable[float] = ()) -> tuple[float, float]:
    """Narrow the limits of an axis in percent, so that points and zero can be told apart, however long whiskers are.

    Single repeats stay inside.
    """
    known = [0.0, *(point for point in points if not pd.isna(point))]
    reach = 1.5 * max(max(known) - min(known), 10.0)
    single = [1.05 * each for each in repeats if not pd.isna(each)]
    return min([max(low, min(known) - reach), *single]), max([min(high, max(known) + reach), *single])


def whiskers(rows: pd.DataFrame, value: str, scale: float) -> list[pd.Series]:
    """Lengths of whiskers down and up to the interval over repeats; none where there is one repeat only."""
    middle, several = rows[value].astype(float), rows["repeats"] > 1
    low, high = (rows[f"{value}_{end}"].astype(float) for end in ("low", "high"))
    return [((middle - low) * scale).where(several), ((high - middle) * scale).where(several)]
