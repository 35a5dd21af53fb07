"""Values over the number of devices or side by side: means with their intervals, and a point for each repeat."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import Container
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.scaling.speedup import over_repeats
from multicard.analysis.statistics import Interval
from multicard.figures.bars import dots, height_of, whiskers
from multicard.figures.series import device_axis, labels
from multicard.figures.style import DASHES, MARKERS, WEAK, Colour, characters_of, colours, explain_marks, filled, say

# No series is drawn as a thin line without marks.
IDEAL = {"color": "0.3", "linestyle": "-", "linewidth": 0.7, "label": "ideal", "zorder": 1}
SCALING = {"strong": "\n(strong scaling: one batch shared)", "weak": "\n(weak scaling: a batch on each)"}

OFFSET = 0.035  # between neighbouring series, in devices
LINEAR_TO = 8  # devices, beyond which their axis is logarithmic
NAME_WIDTH = 34  # characters of a line of a name beside an axis


def series_of(measures: pd.DataFrame, values: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Values of each configuration over its repeats, and the completed runs, each with the name of its `series`."""
    names = varied(measures, besides=("devices", "repeat"))
    data, runs = over_repeats(measures, list(values)), measures[measures["outcome"] == "completed"]
    data.insert(0, "series", labels(data, names))
    return data, runs.copy().assign(series=labels(runs, names))


def height_for(data: pd.DataFrame) -> float:
    """Inches that a figure of `draw_series` takes: with rows where there is one number of devices."""
    if len(data) == 1:
        return 1.3
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
    baseline: float | None = None,
    named: bool = True,
    several: bool | None = None,
) -> None:
    """Draw one line per `series` over devices, or a row per series where there is one number of devices.

    Whiskers are the interval over repeats, small dots the repeats. A single value is written; a panel without values
    says so.

    Parameters
    ----------
    axes
        Where to draw.
    data
        A row per configuration: `series`, `devices`, `repeats`, the value with its `_low` and `_high`, and perhaps the
        `verdict` that decides how a mark is filled.
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
    baseline
        Value of no difference, for a line there; the axis then need not begin at zero.
    named
        Whether rows have their names, which a panel at the left may show already.
    several
        Whether it is over devices; None where `data` has several numbers of them.
    """
    axes.set_title(title)
    known = data[data[value].notna()]
    if known.empty:
        say(axes, "not recorded")
        return
    if len(data) == 1:
        ends = [known[f"{value}{end}"].iloc[0] * scale for end in ("", "_low", "_high")]
        ends = [None if pd.isna(end) else float(end) for end in ends]
        value = Interval(*ends, int(known["repeats"].iloc[0])).format()
        say(axes, f"{filled(f'{label}:', characters_of(axes))}\n{filled(value, characters_of(axes))}")
        return
    several = data["devices"].nunique() > 1 if several is None else several
    names = list(dict.fromkeys(data["series"]))
    own_name = len(names) > 1 or palette is not None
    palette = palette or dict(zip(names, colours(len(names)), strict=True))

    def at(place: pd.Series, values: pd.Series) -> tuple[pd.Series, pd.Series]:
        return (place, values) if several else (values, place)

    if ideal:
        axes.plot(list(ideal), list(ideal.values()), **IDEAL)
    if baseline is not None:
        (axes.axhline if several else axes.axvline)(baseline, color="0.3", linewidth=1.0, zorder=1)
    for index, name in enumerate(names):
        rows = known[known["series"] == name].sort_values("devices")
        if rows.empty:
            continue
        marker = MARKERS[index % len(MARKERS)] if several else "o"
        colour = palette[name if several else names[0]]
        shift = OFFSET * (index - (len(names) - 1) / 2)  # so that marks of equal height do not cover each other
        place = partial(_place, index=None if several else index, shift=shift, largest=data["devices"].max())
        means, ends = rows[value].astype(float) * scale, whiskers(rows, value, scale)
        drawn = axes.errorbar(
            *at(place(rows), means),
            **{"yerr" if several else "xerr": ends},
            label=name if several and own_name else "_",
            color=colour,
            marker=marker,
            linestyle=DASHES[index % len(DASHES)] if several else "none",
            capsize=3,
            markersize=5,
            markerfacecolor="white" if index % 2 and several and "verdict" not in data else colour,
            clip_on=False,  # markers at zero are not cut off
        )
        for artist in drawn.get_children():
            artist.set_in_layout(False)
        for artist in (*drawn.lines[1], *drawn.lines[2]):
            artist.set_clip_on(True)
        weak = {"markersize": 5, "linestyle": "none", "color": colour, "marker": marker, "zorder": 3, "label": "_"}
        for verdict, fill in WEAK.items() if "verdict" in rows else ():
            which = rows["verdict"] == verdict
            axes.plot(*at(place(rows[which]), means[which]), **weak, **fill)
        if runs is not None:
            own = runs[(runs["series"] == name) & runs["devices"].isin(rows.loc[rows["repeats"] > 1, "devices"])]
            if len(own):
                dots(axes, place(own), own[value].astype(float) * scale, horizontal=not several)
    if "verdict" in data:
        explain_marks(axes, set(known["verdict"]))
    highest = 2 * known[value].max() * scale
    if runs is not None:
        highest = max(highest, runs[value].max() * scale)
    if several:
        ticks_of_devices(axes, data)
        axes.margins(x=0.12)
        axes.set_ylabel(label)
        if baseline is None:  # the whiskers of two repeats may be so long that nothing else could be seen
            axes.set_ylim(0, 1.07 * min(axes.dataLim.ymax, highest))
        return
    axes.set_yticks(range(len(names)), [filled(name, NAME_WIDTH) for name in names] if named else [""] * len(names))
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=label)
    axes.grid(visible=False, axis="y")
    if baseline is None:
        axes.set_xlim(0, 1.07 * min(axes.dataLim.xmax, highest))


def _place(rows: pd.DataFrame, index: int | None, shift: float, largest: int) -> pd.Series:
    """Where marks stand: on the row of an index, or at their devices, moved by a share of the distance there."""
    if index is not None:
        return pd.Series(float(index), rows.index)
    return rows["devices"] + shift * (rows["devices"] if largest > LINEAR_TO else max(largest - 1, 1) / 4)


def ticks_of_devices(axes: Axes, data: pd.DataFrame) -> None:
    """Label the axis of devices with their kind, and with the kind of scaling where `data` states one."""
    devices = sorted(int(n) for n in data["devices"].unique())
    if len(devices) > 1 and devices[-1] > LINEAR_TO:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(devices))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
    kinds = set(data["scaling"]) if "scaling" in data else set()
    axes.set_xlabel(f"{device_axis(data)}{SCALING.get(kinds.pop(), '') if len(kinds) == 1 else ''}")


def bars_of(container: Container) -> Sequence[LineCollection]:
    """The whiskers that a container holds."""
    drawn = getattr(container, "errorbar", container)
    return getattr(drawn, "lines", [(), (), ()])[2]


def mark_cuts(axes: Axes) -> None:
    """Put an arrowhead where the edge of a panel cuts a whisker off."""
    (left, right), (bottom, top) = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    for container in axes.containers:
        for collection in bars_of(container):
            colour = collection.get_color()[0]
            for x, y in (end for ends in collection.get_segments() if len(ends) for end in ends):
                at = np.clip(x, left, right), np.clip(y, bottom, top)
                arrow = {(x < left): "<", (x > right): ">", (y < bottom): "v", (y > top): "^"}.get(True)
                if arrow:
                    axes.plot(*at, marker=arrow, markersize=4, color=colour, clip_on=False, zorder=5, label="_")
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
