"""The four shares of time that Nsight Systems' own reports give as percentages."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis import per_run
from multicard.analysis.scaling import over_repeats
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.figures.activity import why_not
from multicard.figures.scaling import axis_of_devices, lines_by_devices
from multicard.figures.series import labels, varied
from multicard.figures.style import WIDTH_IN, NothingToShow, legend_below

# Title, and what each is a share of.
SHARES = {
    "host_to_device_copies": ("Copies from the host", "Share of the time of\nmemory operations (%)"),
    "kernel_launches": ("Kernel launches", "Share of the time of\nCUDA API calls (%)"),
    "synchronizations": ("Synchronizations", "Share of the time of\nCUDA API calls (%)"),
    "nccl": ("NCCL kernels", "Share of the time of\nkernels (%)"),
}


def shares(gathered: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Four shares of summed time against devices, a panel each."""
    found = per_run.shares(gathered).reindex(columns=list(SHARES))
    if found.isna().all(axis=None):
        raise NothingToShow(f"none of the four shares was recorded{why_not(gathered)}")
    measures = gathered.with_values(found)
    data = over_repeats(measures, list(SHARES))
    data.insert(0, "series", labels(data, varied(measures, besides=("devices", "repeat"))))
    figure, panels = plt.subplots(2, 2, figsize=(WIDTH_IN, 5.0))
    for axes, (name, (title, label)) in zip(panels.flat, SHARES.items(), strict=True):
        lines_by_devices(axes, data, name, 100.0)
        axes.set(title=title, ylabel=label)
        axis_of_devices(axes, data)
    legend_below(figure, *panels.flat)
    return figure, data
