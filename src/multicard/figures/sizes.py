"""Time and efficiency over image sizes and numbers of devices."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.analysis.scaling import over_repeats
from multicard.core.units import MINUTES
from multicard.figures.scaling import axis_of_devices, lines_by_devices
from multicard.figures.series import labels, only_count, unit, varied
from multicard.figures.style import WIDTH_IN, legend_below, ordered_colours, say, unit_for


def sizes(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Time of a pass over the data and efficiency against devices, a line per image size.

    Other varied parameters, such as the precision, have a row of panels per combination.
    """
    others = varied(measures, besides=("image_size", "devices", "repeat"))
    data = over_repeats(measures, ["epoch_time_s", "efficiency"]).sort_values(
        ["image_size", "devices"], kind="stable", ignore_index=True
    )
    data.insert(0, "series", [unit("image_size", size) for size in data["image_size"]])
    data.insert(1, "panel", labels(data, others) if others else "")
    panels = list(dict.fromkeys(_panels(measures, others)))
    palette = dict(zip(dict.fromkeys(data["series"]), ordered_colours(data["series"].nunique()), strict=True))
    alone = only_count(measures)

    figure, rows = plt.subplots(len(panels), 2, figsize=(WIDTH_IN, 0.7 + 2.4 * len(panels)), squeeze=False)
    for (left, right), name in zip(rows, panels, strict=True):
        own = data[data["panel"] == name]
        mine = [palette[series] for series in dict.fromkeys(own["series"])]
        scale, seconds = unit_for(own["epoch_time_s"], MINUTES)
        lines_by_devices(left, own, "epoch_time_s", scale, mine)
        left.set(title=f"{name}: time" if name else "Time", ylabel=f"Time per pass ({seconds})")
        right.set(title=f"{name}: efficiency" if name else "Efficiency", ylabel="Speed-up per device")
        if alone:
            say(right, f"{alone}:\nno efficiency")
        elif own["efficiency"].isna().all():
            say(right, "no run on one device to compare with:\nno efficiency")
        else:
            lines_by_devices(right, own, "efficiency", palette=mine)
            right.axhline(1.0, color="0.45", linestyle=(0, (1, 1.5)), label="ideal", zorder=1)
            right.yaxis.set_major_formatter(PercentFormatter(1.0))
        for axes in (left, right):
            axis_of_devices(axes, own)
    legend_below(figure, *rows.flat)
    return figure, data


def _panels(measures: pd.DataFrame, others: list[str]) -> list[str]:
    """Names of the panels in the order of the runs."""
    completed = measures[measures["outcome"] == "completed"]
    return labels(completed, others) if others else [""]
