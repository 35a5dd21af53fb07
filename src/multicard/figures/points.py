"""Values over the number of devices: means with their intervals, and a point for each repeat."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.scaling.speedup_tables import over_repeats
from multicard.figures.bars import dots, height_of, name_rows, whiskers
from multicard.figures.series import completed_of, device_axis, labels
from multicard.figures.style import DASHES, MARKERS, Colour, colours, say

SCALING = {"strong": "\n(strong scaling: one batch shared)", "weak": "\n(weak scaling: a batch on each)"}
OFFSET = 0.035  # between neighbouring series, in devices
LINEAR_TO = 8  # devices, beyond which their axis is logarithmic
LEAST_GAIN = 0.1  # that whiskers at least have space for beyond the points, where values are around zero


def series_of(measures: pd.DataFrame, values: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Values of each configuration over its repeats, and the completed runs, each with the name of its `series`."""
    names = varied(measures, besides=("devices", "repeat"))
    data, runs = over_repeats(measures, list(values)), completed_of(measures)
    data.insert(0, "series", labels(data, names))
    return data, runs.assign(series=labels(runs, names))


def height_for(data: pd.DataFrame) -> float:
    """Inches that a figure of `draw_series` takes: with rows where there is one number of devices."""
    return 3.2 if data["devices"].nunique() > 1 else 1.1 + height_of(data["series"].nunique(), 0.3)


def draw_series(
    axes: Axes,
    data: pd.DataFrame,
    value: str,
    title: str,
    label: str,
    scale: float = 1.0,
    runs: pd.DataFrame | None = None,
    palette: Mapping[str, Colour] | None = None,
    ideal: Mapping[int, float] | None = None,
    around_zero: bool = False,
) -> None:
    """Draw one line per `series` over devices, or a row per series where there is one number of devices.

    Whiskers are the interval over repeats, small dots the repeats. A panel without values says so.

    Parameters
    ----------
    axes
        Where to draw.
    data
        A row per configuration: `series`, `devices`, `repeats`, the value with its `_low` and `_high`, and perhaps the
        `verdict`, by which marks are hollow.
    value
        Column to draw.
    title, label
        Of the panel and of the axis of values, with its unit.
    scale
        What the values are multiplied by, for that unit.
    runs
        A row per run with the same columns, for the dots.
    palette
        Colour of each series; None for those of `style.colours`.
    ideal
        Ideal value by number of devices.
    around_zero
        Whether values may be negative, and zero is no difference: a line is there.
    """
    axes.set_title(title)
    known = data[data[value].notna()]
    if known.empty:
        say(axes, "not recorded")
        return
    over_devices = data["devices"].nunique() > 1
    names = list(dict.fromkeys(data["series"]))
    look = palette or dict(zip(names, colours(len(names)) if over_devices else colours(1) * len(names), strict=True))
    largest = data["devices"].max()

    def at(rows: pd.DataFrame, index: int, values: pd.Series) -> tuple[pd.Series, pd.Series]:
        if not over_devices:
            return values, pd.Series(float(index), rows.index)
        # Marks of equal height do not cover each other.
        shift = OFFSET * (index - (len(names) - 1) / 2)
        return rows["devices"] + shift * (rows["devices"] if largest > LINEAR_TO else (largest - 1) / 4), values

    if ideal:
        axes.plot(list(ideal), list(ideal.values()), color="0.3", linewidth=0.7, label="ideal", zorder=1)
    if around_zero:
        (axes.axhline if over_devices else axes.axvline)(0, color="0.3", linewidth=1.0, zorder=1)
    drawn = []
    for index, name in enumerate(names):
        rows = known[known["series"] == name].sort_values("devices")
        marker = MARKERS[index % len(MARKERS)] if over_devices else "o"
        place, lengths = at(rows, index, rows[value].astype(float) * scale), whiskers(rows, value, scale)
        drawn.append((place, lengths, look[name]))
        axes.errorbar(
            *place,
            **{"yerr" if over_devices else "xerr": lengths},
            label=name if over_devices and len(names) > 1 else "_",
            color=look[name],
            marker=marker,
            linestyle=DASHES[index % len(DASHES)] if over_devices else "none",
            capsize=3,
            markersize=5,
        )
        if "verdict" in rows:
            hollow = {"color": look[name], "markerfacecolor": "white", "markersize": 5, "zorder": 3, "label": "_"}
            x, y = (each[rows["verdict"] == "none"] for each in place)
            axes.plot(x, y, linestyle="none", marker=marker, **hollow)
        if runs is not None:
            own = runs[(runs["series"] == name) & runs["devices"].isin(rows.loc[rows["repeats"] > 1, "devices"])]
            if len(own):
                dots(axes, *at(own, index, own[value].astype(float) * scale))
    if "verdict" in data and (known["verdict"] == "none").any():
        look = {"linestyle": "none", "marker": "o", "color": "0.3", "markerfacecolor": "white"}
        axes.plot([], [], label="hollow: not significant", **look)
    repeats = runs.loc[runs["series"].isin(names), value] if runs is not None else known[value]
    shown = scale * pd.concat([known[value].astype(float), repeats.astype(float)])
    limits = _limits(axes, shown, over_devices, LEAST_GAIN * scale if around_zero else 0.0)
    if over_devices:
        _devices_axis(axes, data)
        axes.set(ylabel=label, ylim=limits)
    else:
        name_rows(axes, names)
        axes.set(xlabel=label, xlim=limits)
    for place, lengths, colour in drawn:
        _mark_cut(axes, place if over_devices else place[::-1], lengths, limits, over_devices, colour)


def _mark_cut(
    axes: Axes,
    place: tuple[pd.Series, pd.Series],
    lengths: Sequence[pd.Series],
    limits: tuple[float, float],
    upright: bool,
    colour: Colour,
) -> None:
    """An arrow at the edge of the panel where a whisker goes on beyond it; `place`: position and value of each mean."""
    position, value = place
    ends = ((value - lengths[0] < limits[0], limits[0], "v<"), (value + lengths[1] > limits[1], limits[1], "^>"))
    for is_cut, edge, arrows in ends:
        if not is_cut.any():  # the layout cannot place marks of nothing
            continue
        along = position[is_cut], pd.Series(edge, position[is_cut].index)
        arrow = {"marker": arrows[0 if upright else 1], "markersize": 5, "linestyle": "none", "label": "_"}
        axes.plot(*(along if upright else along[::-1]), color=colour, clip_on=False, zorder=4, **arrow)


def _limits(axes: Axes, shown: pd.Series, over_devices: bool, least: float) -> tuple[float, float]:
    """Ends of the axis of values: zero and all that is shown are inside; long whiskers are cut."""
    bottom, top = min(0.0, shown.min()), max(0.0, shown.max())
    space = max(top - bottom, least)
    low, high = axes.dataLim.intervaly if over_devices else axes.dataLim.intervalx
    low, high = min(bottom, max(low, bottom - space)), max(top, min(high, top + space))
    margin = 0.07 * (high - low) or 1.0
    return low - margin if low < 0 else 0.0, high + margin


def _devices_axis(axes: Axes, data: pd.DataFrame) -> None:
    """Label the axis of devices with their kind, and with the kind of scaling where `data` states one."""
    devices = sorted(int(n) for n in data["devices"].unique())
    if devices[-1] > LINEAR_TO:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(devices))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.margins(x=0.12)
    kinds = set(data["scaling"]) if "scaling" in data else set()
    axes.set_xlabel(f"{device_axis(data)}{SCALING.get(kinds.pop(), '') if len(kinds) == 1 else ''}")
