"""Where the time of a step goes, phase by phase."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.scaling import over_repeats
from multicard.figures.series import device_axis, labels, varied
from multicard.figures.style import HATCHES, PHASE_COLOURS, WIDTH_IN, legend_below
from multicard.record.names import PHASES


def phases(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Mean time per step in each phase, one bar per configuration; parts of a bar add up to the step."""
    columns = [f"{name}_s" for name in (*PHASES, "other")]
    data = over_repeats(measures, columns)[lambda d: [c for c in d if not c.endswith(("_low", "_high"))]]
    others = varied(measures, besides=("devices", "repeat"))
    kind = device_axis(measures)
    names = [
        f"{label}, {count} {kind if count > 1 else kind.replace('GPUs', 'GPU').removesuffix('es')}"
        for label, count in zip(labels(data, others), data["devices"], strict=True)
    ]
    data.insert(0, "configuration", names)

    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.1 + 0.34 * len(data)))
    left = pd.Series(0.0, index=data.index)
    for index, column in enumerate(columns):
        widths = data[column].astype(float).fillna(0.0) * 1e3
        if not widths.any():
            continue  # a phase that these jobs do not have
        name = column.removesuffix("_s")
        axes.barh(
            data["configuration"],
            widths,
            left=left,
            height=0.68,
            color=PHASE_COLOURS[name],
            hatch=HATCHES[index % len(HATCHES)],
            edgecolor="0.2",
            linewidth=0.5,
            label=name,
        )
        left += widths
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="Mean time per step (ms)", title="Phases of a step")
    legend_below(figure, axes)
    return figure, data
