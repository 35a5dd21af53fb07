"""Number formats compared: speed, and accuracy beside it."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.analysis.scaling import over_repeats
from multicard.figures.series import labels, varied
from multicard.figures.style import HATCHES, WIDTH_IN, colours, legend_below


def precision(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and test accuracy per precision, one group of bars per precision."""
    values = {"iteration_time_s": 1e3, "test_accuracy": 1.0}
    data = over_repeats(measures, list(values))
    data.insert(0, "series", labels(data, varied(measures, besides=("precision", "repeat"))))
    formats = list(dict.fromkeys(data["precision"]))
    names = list(dict.fromkeys(data["series"]))

    figure, panels = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.0))
    width = 0.7 / len(names)
    for axes, (value, scale) in zip(panels, values.items(), strict=True):
        for index, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
            rows = data[data["series"] == name].set_index("precision").reindex(formats)
            middle = rows[value].astype(float) * scale
            below = middle - rows[f"{value}_low"].astype(float) * scale
            above = rows[f"{value}_high"].astype(float) * scale - middle
            axes.bar(
                np.arange(len(formats)) + (index - (len(names) - 1) / 2) * width,
                middle,
                width,
                yerr=[below, above],
                capsize=3,
                label=name,
                color=colour,
                hatch=HATCHES[index % len(HATCHES)],
                edgecolor="0.2",
                linewidth=0.5,
            )
        axes.set_xticks(range(len(formats)), [name.upper() for name in formats])
        axes.grid(visible=False, axis="x")
    panels[0].set(title="Iteration time", ylabel="Time per step (ms)")
    panels[1].set(title="Accuracy after the last epoch", ylabel="Test accuracy", ylim=(0, 1))
    panels[1].yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(names) > 1:
        legend_below(figure, panels[0])
    return figure, data
