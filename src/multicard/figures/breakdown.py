"""Where the time of a step goes, phase by phase."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.core.layout import PHASES
from multicard.figures.bars import group_axis, stacked
from multicard.figures.series import configuration_names, medians
from multicard.figures.style import HATCHES, PHASE_COLOURS, SECONDS, WIDTH_IN, NothingToShow, legend_below, unit_for

LOOK = {name: (PHASE_COLOURS[name], HATCHES[index % len(HATCHES)]) for index, name in enumerate((*PHASES, "other"))}


def phases(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Mean time per step in each phase, one bar per configuration; parts of a bar add up to the step."""
    columns = [f"{name}_s" for name in LOOK]
    data = medians(measures, columns)
    names = configuration_names(measures, data)
    data.insert(0, "configuration", names)
    times = data[columns].astype(float).fillna(0.0)
    if not times.any(axis=None):
        raise NothingToShow("no phases of steps were recorded")

    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.1 + 0.34 * len(data)))
    scale, unit = unit_for(times.sum(axis=1), SECONDS)
    # A phase that none of these jobs has is left out.
    parts = {name: times[f"{name}_s"] * scale for name in LOOK if times[f"{name}_s"].any()}
    stacked(axes, range(len(data)), parts, LOOK, horizontal=True)
    group_axis(axes, names, horizontal=True)
    axes.set(xlabel=f"Mean time per step ({unit})", title="Phases of a step")
    legend_below(figure, axes)
    return figure, data
