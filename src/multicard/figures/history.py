"""A measure of each configuration over versions, with what became worse marked."""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.changes import OUTCOME, REGRESSION, Change
from multicard.analysis.comparison.results import Point
from multicard.core.text import counted, for_figure, natural
from multicard.core.units import heading, unit_for, units_of
from multicard.figures.series import configuration_names
from multicard.figures.style import WIDTH_IN, colours, filled, legend_below, note_above, styled

COLUMNS, PANEL_IN = 3, 1.7  # of panels, and the height of one
TITLE_PER_IN, TITLE_IN = 11, 0.14  # characters of a title per inch of its panel, and the height of a line of it
MOST = 24  # panels
LONGEST = 14  # characters of a version's name at an axis

Since = dict[tuple[str, int], dict[str, Change]]


def draw_history(
    points: Sequence[Point],
    changes: Sequence[Change],
    versions: Sequence[str],
    tolerance: float | None,
    synthetic: bool,
) -> tuple[Figure, pd.DataFrame]:
    """Draw a panel per configuration: means with their intervals, the tolerance around the first, regressions.

    Parameters
    ----------
    points
        As `multicard.analysis.comparison.results.over_versions` gives them, some with values.
    changes
        Of their measure and of how runs end.
    versions
        Names, in their order.
    tolerance
        With which the changes were judged, if with one.
    synthetic
        Whether runs are synthetic, which is said above.

    Returns
    -------
    Figure, pandas.DataFrame
        And the numbers shown, of configurations without a panel as well.
    """
    lines: dict[str, list[Point]] = {}
    for point in points:
        lines.setdefault(point.configuration, []).append(point)
    shown = [name for name in lines if any(_is_known(point) for point in lines[name])]
    left_out = max(0, len(shown) - MOST)
    if left_out:  # those that became worse come first
        worse = {each.configuration for each in changes if each.verdict == REGRESSION}
        kept = sorted(shown, key=lambda name: name not in worse)[:MOST]
        shown = [name for name in shown if name in kept]
    with styled():
        figure = _draw({name: lines[name] for name in shown}, _since(changes), versions, tolerance)
        notes = ["Synthetic: no real machine was measured"] if synthetic else []
        if left_out:
            notes.append(f"{counted(left_out, 'configuration')} without a panel: see the table beside the figure")
        note_above(figure, notes)
    data = _table(points, _since(changes), versions)
    return figure, data.assign(synthetic=True) if synthetic else data


def _since(changes: Sequence[Change]) -> Since:
    """The changes of each configuration and version since the version before, and since the first."""
    found: Since = {}
    for each in changes:
        before, after = each.versions
        if each.measure == OUTCOME:  # of runs that do not complete any more
            found.setdefault((each.configuration, after), {})["previous"] = each
            continue
        own = found.setdefault((each.configuration, after), {})
        if own.get("previous", each).measure != OUTCOME and before >= own.get("previous", each).versions[0]:
            own["previous"] = each
        if before <= own.get("first", each).versions[0]:
            own["first"] = each
    return found


def _draw(named: dict[str, list[Point]], since: Since, versions: Sequence[str], tolerance: float | None) -> Figure:
    titled = zip(_titles(named), named.values(), strict=True)
    titles, lines = zip(*sorted(titled, key=lambda pair: natural(pair[0])), strict=True)
    columns = 2 if len(lines) == 4 else min(COLUMNS, len(lines))
    rows = math.ceil(len(lines) / columns)
    titles = [filled(title, int(WIDTH_IN / columns * TITLE_PER_IN)) for title in titles]
    height = PANEL_IN + TITLE_IN * max(title.count("\n") for title in titles)
    figure, grid = plt.subplots(
        rows, columns, figsize=(WIDTH_IN, height * rows + 0.9), sharex=True, squeeze=False
    )  # fmt: skip
    panels = list(grid.flat)
    covered = any(point.mean.low is not None for own in lines for point in own)
    whiskers = f"mean of repeats{', 95% CI' if covered else ''}"
    for axes, own, title in zip(panels, lines, titles, strict=False):
        _panel(axes, own, since, tolerance, whiskers)
        axes.set_title(title, fontsize="small")
    for axes in panels[len(lines) :]:
        axes.remove()
    names = [for_figure(name, LONGEST) for name in versions]
    per_panel = WIDTH_IN / columns * 8  # characters of its width
    tilted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if sum(map(len, names)) > per_panel else {}
    for axes in panels[max(0, len(lines) - columns) : len(lines)]:  # the last of their columns
        axes.tick_params(labelbottom=True)
        axes.set_xticks(range(len(names)), names, **tilted)
    panels[0].set_xlim(-0.5, len(names) - 0.5)
    legend_below(figure, *panels[: len(lines)])
    return figure


def _panel(axes: Axes, own: list[Point], since: Since, tolerance: float | None, whiskers: str) -> None:
    column = next(point.column for point in own if point.column)
    known = [point for point in own if _is_known(point)]
    factor, unit = unit_for([point.mean.value for point in known], units_of(column) or ((1.0, ""),))
    first = known[0].mean.value * factor
    if tolerance is not None:
        band = [first * (1 - tolerance), first * (1 + tolerance)]
        axes.axhspan(*band, color="0.88", zorder=0, label=f"first version ±{100 * tolerance:g}%")
    # None is not a number here: a version without values is a gap in the line.
    means = [point.mean for point in own]
    ends = [(each.value, each.low or each.value, each.high or each.value) for each in means]
    value, low, high = np.array(ends, float).T * factor
    places = [point.version for point in own]
    axes.errorbar(
        places, value, [value - low, high - value],
        color=colours(1)[0], marker="o", markersize=4, linewidth=1, capsize=2, label=whiskers,
    )  # fmt: skip
    steps, of_first = (
        [_regressed(since.get((point.configuration, point.version), {}).get(name)) for point in own]
        for name in ("previous", "first")
    )
    creeps = [first and not step for first, step in zip(of_first, steps, strict=True)]
    for marked, marker, label in (
        (steps, "X", "worse than the version before"), (creeps, "D", "worse than the first version only")
    ):  # fmt: skip
        if any(marked):
            axes.plot(
                places, np.where(marked, value, np.nan),
                linestyle="none", marker=marker, markersize=7, color="0.1", zorder=5, label=label,
            )  # fmt: skip
    for point in own:
        if point.outcomes and not _is_known(point):
            # Runs that completed may lack the measure.
            why = next((each for each in point.outcomes if each != "completed"), "not recorded")
            axes.annotate(
                why.replace("_", " "), (point.version, 0), xycoords=("data", "axes fraction"),
                xytext=(0, 3), textcoords="offset points", rotation=90, ha="center", va="bottom", fontsize="x-small",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )  # fmt: skip
    # Small noise may not look large: the axis spans at least four times the tolerance on both sides.
    reach = 1.1 * max(4 * (tolerance or 0.0) * first, 0.01 * first, np.nanmax(np.abs([low - first, high - first])))
    axes.set_ylim(max(0.0, first - reach), first + reach)
    axes.set_ylabel(heading(column, unit), fontsize="small")


def _titles(lines: dict[str, list[Point]]) -> list[str]:
    """What varies among the configurations, or their ids where these are of several workloads."""
    rows = [next(point.parameters for point in own if point.parameters) for own in lines.values()]
    if len({row["workload"] for row in rows}) > 1:
        return list(lines)
    measures = pd.DataFrame(rows).assign(outcome="completed", repeat=1)
    return configuration_names(measures, measures)


def _regressed(change: Change | None) -> bool:
    return change is not None and change.verdict == REGRESSION


def _is_known(point: Point) -> bool:
    return point.mean.value is not None


def _table(points: Sequence[Point], since: Since, versions: Sequence[str]) -> pd.DataFrame:
    rows = []
    for point in points:
        row = {
            "configuration": point.configuration, "version": versions[point.version], "measure": point.column,
            "mean": point.mean.value, "low": point.mean.low, "high": point.mean.high,
            "repeats": point.mean.repeats, "outcomes": ", ".join(dict.fromkeys(point.outcomes)),
        }  # fmt: skip
        for name in ("previous", "first"):
            judged = since.get((point.configuration, point.version), {}).get(name)
            change = judged.change if judged else None
            row |= {
                f"since_{name}{end}": getattr(change, end.removeprefix("_") or "value", None)
                for end in ("", "_low", "_high")
            }
            row[f"since_{name}_verdict"] = judged.verdict if judged else None
        rows.append(row)
    return pd.DataFrame(rows)
