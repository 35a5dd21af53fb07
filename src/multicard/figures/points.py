"""Panels of values over the number of devices: means with their intervals, and a dot for each repeat.

If there is a single number of devices, a panel has a row for each series instead of a line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter, ScalarFormatter

from multicard.answers.comparison.comparisons import varied
from multicard.answers.scaling.speedup_tables import over_repeats
from multicard.core.units import number, percent
from multicard.figures.bars import draw_repeats, name_rows, rows_height_in, whisker_lengths
from multicard.figures.marks import id_of_points
from multicard.figures.series import completed_of, device_axis, labels
from multicard.figures.style import SMALLEST_POINTS, Colour, colours, note_inside
from multicard.results.results import Results

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINE_STYLES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
SCALING = {"strong": "\n(strong scaling: one batch shared)", "weak": "\n(weak scaling: one batch each)"}
# The least number of devices at which marks are joined: a line through two would suggest a law that nobody measured.
FEWEST_JOINED = 3
# Marks of series are shifted, so that coinciding ones lie side by side: neighbouring series by this part of the axis,
# and the first and the last one by this part of the least distance between two numbers of devices, at most.
SERIES_SHIFT = 0.05
LARGEST_SHIFT = 0.6


@dataclass(frozen=True)
class Series:
    """The series of a panel: means over repeats, and the repeats.

    Attributes
    ----------
    means
        A row per configuration: `series`, `device` (the kind), `devices` (the number), `repeats`, and each value with
        the bounds of its interval (`<value>_low`, `<value>_high`), which become whiskers. Two columns are optional: if
        `verdict` is "none", the mark is hollow; if `scaling` is "strong" or "weak" in all rows, the axis of devices
        states it.
    runs
        A row per run, with `series`, `devices` and the values, which are drawn as small dots; None for no dots.
    palette
        Colour of each series by its name; None for the usual colours.
    """

    means: pd.DataFrame
    runs: pd.DataFrame | None = None
    palette: Mapping[str, Colour] | None = None

    def per_device(self, value: str) -> "Series":
        """Return the series with a value divided by the number of devices, in columns `<value>_per_device…`."""
        quotients = {f"{value}{bound}": f"{value}_per_device{bound}" for bound in ("", "_low", "_high")}
        means = self.means.rename(columns=quotients)
        for quotient in quotients.values():
            means[quotient] = means[quotient] / means["devices"]
        runs = self.runs
        if runs is not None:
            runs = runs.assign(**{f"{value}_per_device": runs[value].astype(float) / runs["devices"]})
        return replace(self, means=means, runs=runs)

    @property
    def names(self) -> list[str]:
        """Names of the series, in order."""
        return list(dict.fromkeys(self.means["series"]))

    @property
    def is_over_devices(self) -> bool:
        """True if there are several numbers of devices, so that a series is a line; False if a series is a row."""
        return bool(self.means["devices"].nunique() > 1)

    @property
    def height_in(self) -> float:
        """Inches that a figure with such panels takes."""
        return 2.8 if self.is_over_devices else 1.1 + rows_height_in(self.names, 0.3)

    @property
    def is_doubling(self) -> bool:
        """True if numbers of devices double, or grow faster, so that the axis of devices is logarithmic."""
        return is_doubling(self.means["devices"].unique())

    def colour_of(self, name: str) -> Colour:
        """Return the colour of a series. Without a palette all rows have the same one: their names distinguish them."""
        if self.palette:
            return self.palette[name]
        if not self.is_over_devices:
            return colours(1)[0]
        return colours(len(self.names))[self.names.index(name)]


@dataclass(frozen=True)
class Quantity:
    """The quantity that a panel shows, and the style of its axis.

    Attributes
    ----------
    column
        Column of the values.
    title, label
        Title of the panel, and label of the axis with its unit.
    scale
        Factor from the values to the unit of the axis.
    ideal
        Ideal value for each number of devices, drawn as a thin line; None for no line.
    has_zero_line
        True if a line is drawn at zero, as for differences, which may be negative.
    follows_devices
        True if the values ideally double, or halve, where the number of devices doubles. If the axis of devices is
        logarithmic, the axis of values then is, too, so that ideal scaling is a straight line.
    most
        Value, in the unit of the axis, at which whiskers are cut; None for no such limit.
    is_in_percent
        True if the values are ratios, which the axis shows in per cent.
    """

    column: str
    title: str
    label: str
    scale: float = 1.0
    ideal: Mapping[int, float] | None = None
    has_zero_line: bool = False
    follows_devices: bool = False
    most: float | None = None
    is_in_percent: bool = False

    def values(self, rows: pd.DataFrame) -> pd.Series:
        """Return the values of rows in the unit of the axis."""
        return rows[self.column].astype(float) * self.scale


def is_doubling(counts: Iterable[int]) -> bool:
    """Return whether there are three or more numbers, each at least twice the one before.

    >>> is_doubling([1, 2, 4]), is_doubling([1, 2, 3]), is_doubling([1, 2])
    (True, False, False)
    """
    ascending = sorted(counts)
    return len(ascending) >= FEWEST_JOINED and all(2 * one <= other for one, other in pairwise(ascending))


@dataclass(frozen=True)
class _Marks:
    """The means of one series as drawn in a panel.

    `positions`: coordinates on the axis of devices or of rows; `values` and `whiskers` (lengths down and up) are in the
    unit of the axis of values.
    """

    positions: pd.Series
    values: pd.Series
    whiskers: tuple[pd.Series, pd.Series]
    colour: Colour


def series_of(results: Results, columns: Sequence[str]) -> Series:
    """Return the means of columns of the measures over the repeats of each configuration, and the completed runs.

    Series are named by the parameters that vary, except the number of devices.
    """
    frame = results.frame()
    names = varied(frame, besides=("devices", "repeat"))
    means = over_repeats(results, list(columns))
    means.insert(0, "series", labels(means, names))
    runs = completed_of(frame)
    return Series(means, runs.assign(series=labels(runs, names)))


def draw_series(axes: Axes, series: Series, quantity: Quantity) -> None:
    """Draw one line per series over the number of devices, or one row per series if there is a single number.

    Whiskers are intervals, small dots single repeats. A panel without values says "not recorded".
    """
    axes.set_title(quantity.title)
    recorded = series.means[series.means[quantity.column].notna()]
    if recorded.empty:
        note_inside(axes, "not recorded")
        return
    panel = _Panel(axes, series, quantity)
    panel.draw_reference_lines()
    drawn = [panel.draw(index, name, recorded[recorded["series"] == name]) for index, name in enumerate(series.names)]
    if "verdict" in recorded and (recorded["verdict"] == "none").any():
        panel.explain_hollow_marks()
    low, high = panel.limits(recorded)
    panel.label_axes(low, high)
    # Whiskers are marked last, because only now the ends of the axis are known.
    for marks in drawn:
        panel.mark_cut_whiskers(marks, low, high)


class _Panel:
    """A panel that shows values of series, drawn by `draw_series`.

    A panel is upright if values go upwards over the number of devices; else values go to the right, in rows. Positions
    are coordinates on the other axis: shifted numbers of devices, or indices of rows.
    """

    def __init__(self, axes: Axes, series: Series, quantity: Quantity):
        self.axes = axes
        self.series = series
        self.quantity = quantity
        self.is_upright = series.is_over_devices
        self.has_logarithmic_values = self.is_upright and quantity.follows_devices and series.is_doubling

    def draw_reference_lines(self) -> None:
        """Draw the line of ideal values, and the line at zero."""
        ideal = self.quantity.ideal
        if ideal and self.is_upright:
            self.axes.plot(list(ideal), list(ideal.values()), color="0.3", linewidth=0.7, label="ideal", zorder=1)
        if self.quantity.has_zero_line:
            draw_line = self.axes.axhline if self.is_upright else self.axes.axvline
            draw_line(0, color="0.3", linewidth=1.0, zorder=1)

    def draw(self, index: int, name: str, rows: pd.DataFrame) -> _Marks:
        """Draw one series: its means with whiskers, hollow if not significant, and its repeats. `index`: its place."""
        rows = rows.sort_values("devices")
        marks = _Marks(
            self._positions(rows, index),
            self.quantity.values(rows),
            whisker_lengths(rows, self.quantity.column, self.quantity.scale),
            self.series.colour_of(name),
        )
        marker = MARKERS[index % len(MARKERS)] if self.is_upright else "o"
        is_joined = self.is_upright and rows["devices"].nunique() >= FEWEST_JOINED
        x, y = self._coordinates(marks.positions, marks.values)
        self.axes.errorbar(
            x,
            y,
            xerr=None if self.is_upright else marks.whiskers,
            yerr=marks.whiskers if self.is_upright else None,
            # Rows have their names at the axis, and a single line needs no name. "_" makes no entry of the legend.
            label=name if self.is_upright and len(self.series.names) > 1 else "_",
            color=marks.colour,
            marker=marker,
            linestyle=LINE_STYLES[index % len(LINE_STYLES)] if is_joined else "none",
            capsize=3,
            markersize=5,
        )
        self.axes.containers[-1][0].set_gid(id_of_points(self.quantity.column, rows))
        if "verdict" in rows:
            is_hollow = rows["verdict"] == "none"
            self.axes.plot(
                x[is_hollow],
                y[is_hollow],
                linestyle="none",
                marker=marker,
                color=marks.colour,
                markerfacecolor="white",
                markersize=5,
                zorder=3,
                label="_",
            )
        runs = self.series.runs
        if runs is not None:
            repeated_counts = rows.loc[rows["repeats"] > 1, "devices"]
            repeats = runs[(runs["series"] == name) & runs["devices"].isin(repeated_counts)]
            if len(repeats):
                x, y = self._coordinates(self._positions(repeats, index), self.quantity.values(repeats))
                draw_repeats(self.axes, x, y)
        return marks

    def _positions(self, rows: pd.DataFrame, index: int) -> pd.Series:
        """Return the positions of a series: if upright, shifted by its index, so that equal values stay visible."""
        if not self.is_upright:
            return pd.Series(float(index), rows.index)
        counts = np.array(sorted(self.series.means["devices"].unique()), dtype=float)
        places = np.log(counts) if self.series.is_doubling else counts
        count_of_series = len(self.series.names)
        step = min(SERIES_SHIFT * np.ptp(places), LARGEST_SHIFT * np.diff(places).min() / count_of_series)
        shift = step * (index - (count_of_series - 1) / 2)
        return rows["devices"] * np.exp(shift) if self.series.is_doubling else rows["devices"] + shift

    def _coordinates(self, positions: pd.Series, values: pd.Series) -> tuple[pd.Series, pd.Series]:
        """Return x and y of marks, from their positions and values."""
        return (positions, values) if self.is_upright else (values, positions)

    def explain_hollow_marks(self) -> None:
        """Add an entry about hollow marks to the legend."""
        self.axes.plot(
            [],
            [],
            linestyle="none",
            marker="o",
            color="0.3",
            markerfacecolor="white",
            label="hollow: not significant",
        )

    def limits(self, recorded: pd.DataFrame) -> tuple[float, float]:
        """Return the ends of the axis of values. Zero and all marks are inside; long whiskers are cut."""
        values = self.quantity.values(recorded)
        runs = self.series.runs
        if runs is not None:
            repeats = runs[runs["series"].isin(self.series.names)]
            values = pd.concat([values, self.quantity.values(repeats)])
        if self.has_logarithmic_values:
            return self._logarithmic_limits(values)
        ideal = list((self.quantity.ideal or {}).values()) if self.is_upright else []
        bottom = min(0.0, values.min())
        top = max(0.0, values.max(), *ideal)
        # Beyond the marks, whiskers get at most as much space as the marks and zero take. Differences may all be close
        # to zero, so their whiskers get space for 0.1 (10%) at least.
        reach = top - bottom
        if self.quantity.has_zero_line:
            reach = max(reach, 0.1 * self.quantity.scale)
        drawn = self.axes.dataLim
        drawn_low, drawn_high = drawn.intervaly if self.is_upright else drawn.intervalx
        low = min(bottom, max(drawn_low, bottom - reach))
        most = top + reach if self.quantity.most is None else min(top + reach, self.quantity.most)
        high = max(top, min(drawn_high, most))
        margin = 0.07 * (high - low) or 1.0
        return low - margin if low < 0 else 0.0, high + margin

    def _logarithmic_limits(self, values: pd.Series) -> tuple[float, float]:
        """Return the ends of a logarithmic axis: marks and ideal are inside; long whiskers are cut at twice that."""
        ideal = pd.Series(self.quantity.ideal or {}, dtype=float)
        shown = pd.concat([values, ideal])
        drawn = self.axes.dataLim
        margin = 1.12
        low = min(shown.min(), max(drawn.minposy, shown.min() / 2))
        high = max(shown.max(), min(drawn.y1, 2 * shown.max()))
        return low / margin, high * margin

    def label_axes(self, low: float, high: float) -> None:
        """Set limits and label of the axis of values, and label the axis of devices or name the rows."""
        label = self.quantity.label
        if self.is_upright:
            _label_devices(self.axes, self.series.means)
            if self.has_logarithmic_values:
                _use_logarithmic_scale(self.axes, is_ratio=self.quantity.ideal is not None)
            self.axes.set(ylabel=label, ylim=(low, high))
        else:
            name_rows(self.axes, self.series.names)
            self.axes.set(xlabel=label, xlim=(low, high))
        if self.quantity.is_in_percent:
            axis = self.axes.yaxis if self.is_upright else self.axes.xaxis
            axis.set_major_formatter(PercentFormatter(1.0))

    def mark_cut_whiskers(self, marks: _Marks, low: float, high: float) -> None:
        """Draw an arrow at the edge of the panel for each whisker that goes beyond it, with the value of its end."""
        down, up = marks.whiskers
        downwards, upwards = ("v", "^") if self.is_upright else ("<", ">")
        for is_cut, edge, arrow, ends in (
            (marks.values - down < low, low, downwards, marks.values - down),
            (marks.values + up > high, high, upwards, marks.values + up),
        ):
            # Matplotlib's layout fails for a plot without marks.
            if not is_cut.any():
                continue
            positions = marks.positions[is_cut]
            x, y = self._coordinates(positions, pd.Series(edge, positions.index))
            self.axes.plot(
                x,
                y,
                color=marks.colour,
                clip_on=False,
                zorder=4,
                marker=arrow,
                markersize=5,
                linestyle="none",
                label="whisker cut, its end beside it" if self.is_upright else "_",
            )
            for position, end in ends[is_cut].items():
                self._write_end(positions[position], edge, end, marks.colour)

    def _write_end(self, position: float, edge: float, end: float, colour: Colour) -> None:
        """Write the value of the end of a cut whisker beside its arrow, inside the panel."""
        is_at_top = edge == max(self.axes.get_ylim() if self.is_upright else self.axes.get_xlim())
        if self.is_upright:
            place, offset = (position, edge), (3, -5 if is_at_top else 5)
            across, along, degrees = "left", "top" if is_at_top else "bottom", 90
        else:
            place, offset = (edge, position), (-5 if is_at_top else 5, 3)
            across, along, degrees = "right" if is_at_top else "left", "bottom", 0
        self.axes.annotate(
            percent(end) if self.quantity.is_in_percent else number(end),
            place,
            xytext=offset,
            textcoords="offset points",
            fontsize=SMALLEST_POINTS,
            color="0.2",
            ha=across,
            va=along,
            rotation=degrees,
        )


def value_limits(axes: Axes, series: Series) -> tuple[float, float]:
    """Return the ends of the axis of values of a panel of these series."""
    return axes.get_ylim() if series.is_over_devices else axes.get_xlim()


def set_value_limits(axes: Axes, series: Series, low: float, high: float) -> None:
    """Set the ends of the axis of values of a panel of these series, and of the panels that share this axis."""
    set_limits = axes.set_ylim if series.is_over_devices else axes.set_xlim
    set_limits(low, high)


def _use_logarithmic_scale(axes: Axes, is_ratio: bool) -> None:
    """Make the axis of values logarithmic, with ticks at powers of two for a ratio, else at 1, 2, 3, 5 and 10."""
    axes.set_yscale("log", base=2 if is_ratio else 10)
    axes.yaxis.set_major_locator(LogLocator(2) if is_ratio else LogLocator(10, subs=(1, 2, 3, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def _label_devices(axes: Axes, means: pd.DataFrame) -> None:
    """Set ticks at the numbers of devices, and label the axis with the kind of device and, if known, of scaling."""
    counts = sorted(int(count) for count in means["devices"].unique())
    if is_doubling(counts):
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.margins(x=0.12)
    scalings = set(means["scaling"]) if "scaling" in means else set()
    scaling = SCALING.get(scalings.pop(), "") if len(scalings) == 1 else ""
    # Panels below each other have the same axis, which the lowest one names.
    place = axes.get_subplotspec()
    if place is None or place.is_last_row():
        axes.set_xlabel(f"{device_axis(means)}{scaling}")
