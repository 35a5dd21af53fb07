"""Number formats compared: speed, and accuracy beside it."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from multicard.figures.bars import grouped
from multicard.figures.series import configurations, device_labels, varied
from multicard.figures.style import SECONDS, WIDTH_IN, legend_below, unit_for


def precision(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and test accuracy per precision, one group of bars per precision."""
    data = configurations(measures, ["iteration_time_s", "test_accuracy"])
    data.insert(0, "series", device_labels(data, varied(measures, besides=("precision", "devices", "repeat"))))
    shown = data.assign(precision=data["precision"].str.upper())

    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.0))
    scale, unit = unit_for(data["iteration_time_s"], SECONDS)
    grouped(left, shown, "precision", "iteration_time_s", scale)
    left.set(title="Iteration time", ylabel=f"Time per step ({unit})")
    grouped(right, shown, "precision", "test_accuracy")
    right.set(title="Accuracy after the last epoch", ylabel="Test accuracy", ylim=(0, 1.04))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    if data["series"].nunique() > 1:
        legend_below(figure, left)
    return figure, data
