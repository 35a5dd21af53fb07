"""Predicted against measured step times over the number of devices."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.evidence import evidence_of, place_words
from multicard.analysis.scaling.series import Forecast, Series, series
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.analysis.statistics import Interval
from multicard.core.units import SECONDS, number, percent, unit_for
from multicard.figures.points import IDEAL, LINEAR_TO, OFFSET, ticks_of_devices
from multicard.figures.series import labels
from multicard.figures.style import MARKERS, WIDTH_IN, NothingToShow, colours, legend_below


def prediction(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Step times that were measured and predicted from fewer devices, and the errors of these predictions."""
    found = series(evidence_of(tables))
    names = varied(tables.measures, besides=("devices", "nodes", "repeat"))
    rows = [
        row | {"series": name} for each, name in zip(found, _labels(found, names), strict=True) for row in _rows(each)
    ]
    data = pd.DataFrame(rows)
    if data.empty or data["predicted_s"].isna().all():
        several = [_further(each).prediction.reason for each in found if len(each.configurations) > 1]
        reasons = dict.fromkeys(filter(None, several))
        raise NothingToShow(
            f"nothing is predicted: {'; '.join(reasons)}"
            if reasons
            else "nothing predicts: it takes completed runs on two numbers of devices, with known samples"
        )
    data = data.dropna(subset=["measured_s", "predicted_s"], how="all", ignore_index=True)
    numbers = list(data.columns.drop("series"))
    data = data[["series", *numbers]].astype(dict.fromkeys(numbers, float)).astype({"devices": int})
    scale, seconds = unit_for(data["measured_s"], SECONDS)
    checked = bool(data["prediction_error"].notna().any())
    figure, panels = plt.subplots(1, 1 + checked, figsize=(WIDTH_IN, 3.2), squeeze=False)
    left, quantities = panels[0, 0], ("predicted_s", "prediction_error")[: panels.size]
    drawn = list(zip(panels.flat, quantities, (scale, 1.0), strict=False))
    for axes, name, factor in drawn:
        _limits(axes, data, name, factor)
    shown, largest = list(dict.fromkeys(data["series"])), data["devices"].max()
    for index, (name, colour) in enumerate(zip(shown, colours(len(shown)), strict=True)):
        own = data[data["series"] == name]
        unit = own["devices"] if largest > LINEAR_TO else (largest - data["devices"].min()) / 4
        place = own["devices"] + OFFSET * (index - (len(shown) - 1) / 2) * unit
        look = {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markersize": 5}
        left.plot(place, own["measured_s"] * scale, label=name, clip_on=False, **look)
        for axes, quantity, factor in drawn:
            _predicted(axes, place + OFFSET * unit, own, quantity, factor, look, index)
    title = "Step time, measured and predicted" if checked else "Step time; predictions were never checked here"
    left.set(title=title, ylabel=f"Time per step ({seconds})")
    for right in panels[0, 1:]:
        right.set(title="Error of predictions", ylabel="Predicted / measured − 1")
        right.axhline(0.0, **(IDEAL | {"label": "none"}))
        right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in panels.flat:
        ticks_of_devices(axes, data.assign(device=tables.measures["device"].iloc[0]))
        axes.set_xlim(left.get_xlim())
    predicted = {"marker": "o", "markerfacecolor": "white", "color": "0.3", "linestyle": "none"}
    left.plot([], [], label="hollow: predicted from fewer devices", **predicted)
    legend_below(figure, left)
    return figure, data


def _labels(found: list[Series], names: list[str]) -> list[str]:
    """Name of each series by what varies, and by its machine and versions where these do."""
    parameters = pd.DataFrame([dict(each.of.parameters) for each in found])
    varying = labels(parameters.reindex(columns=[*dict.fromkeys((*parameters, *names))]), names)
    places = place_words([(each.of.provenance.kind, each.of.provenance.software) for each in found])
    return [", ".join(filter(None, pair)) for pair in zip(varying, places, strict=True)]


def _rows(each: Series) -> list[dict[str, Any]]:
    """Measured numbers of devices with their predictions, and twice the largest."""
    checked = {check.predicted.count: check for check in each.checks}
    counts = sorted(each.configurations)
    rows = []
    for devices in counts:
        measured_s = each.configurations[devices].mean("iteration_time_s")
        step = checked[devices].predicted.step_s if devices in checked else None
        row = {"devices": devices, "measured_s": measured_s, **_ends("predicted_s", step)}
        value = measured_s or np.nan
        errors = {
            name.replace("predicted_s", "prediction_error"): None if end is None else end / value - 1
            for name, end in _ends("predicted_s", step).items()
        }
        rows.append(row | errors)
    further = _further(each)
    return [*rows, {"devices": further.devices, **_ends("predicted_s", further.prediction.step_s)}]


def _further(each: Series) -> Forecast:
    """What is predicted of twice the largest measured number of devices."""
    return each.forecast(2 * max(each.configurations))


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {f"{name}{end}": getattr(interval, end[1:] or "value", None) for end in ("", "_low", "_high")}


def _predicted(
    axes: Axes, place: pd.Series, own: pd.DataFrame, name: str, scale: float, look: dict[str, Any], index: int
) -> None:
    """Hollow marks with their intervals; an arrow with the end of one that the axis cuts off."""
    own, place = own[own[name].notna()], place[own[name].notna()]
    if own.empty:
        return
    values, low, high = (own[f"{name}{end}"].astype(float) * scale for end in ("", "_low", "_high"))
    reach = np.nan_to_num([values - low, high - values])
    hollow = {"linestyle": "none", "capsize": 3, "markerfacecolor": "white"} | look
    axes.errorbar(place, values, yerr=np.abs(reach), **hollow)
    bottom, top = axes.get_ylim()
    for x, *ends in zip(place, low, high, strict=True):
        for end, limit, arrow, sign in ((ends[0], bottom, "v", 1), (ends[1], top, "^", -1)):
            if sign * (end - limit) < 0:
                axes.plot(x, limit, marker=arrow, markersize=6, color=look["color"], clip_on=False, zorder=5)
                axes.annotate(
                    percent(end, signed=True) if name == "prediction_error" else number(end),
                    (x, limit),
                    (-6, sign * (8 + 10 * index)),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    fontsize="small",
                    color=look["color"],
                )


def _limits(axes: Axes, data: pd.DataFrame, name: str, scale: float) -> None:
    """Let step times begin at zero, and no interval hide what else there is."""
    known = data[[name, "measured_s"] if name == "predicted_s" else [name]].astype(float).abs().max().max() * scale
    ends = data[[f"{name}_low", f"{name}_high"]].astype(float).abs().max().max() * scale
    most = 1.07 * float(np.nanmin([max(3 * known, 0.25), np.nanmax([ends, known, 0.02])]))
    axes.set_ylim(0 if name == "predicted_s" else -most, most)
