"""What each technique of tuning a language model costs in time and memory."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.figures.bars import absent, group_axis, grouped, places, stacked
from multicard.figures.series import configurations, device_labels, unit, varied
from multicard.figures.style import BYTES, SECONDS, WIDTH_IN, legend_below, unit_for

# What a rank holds of the model, in colours that no series has.
HELD = {
    "weights": ("#7F7F7F", ""),
    "adapters": ("#F0E442", "///"),
    "gradients": ("#56B4E9", "..."),
    "optimizer state": ("#CC79A7", "\\\\\\"),
}
COLUMNS = {part: f"{part.removesuffix(' state')}_bytes" for part in HELD}

# What the peak memory is on each kind of device.
PEAK = {"cuda": "Allocated, per GPU", "cpu": "Resident, CPU process"}


def techniques(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time, throughput, peak memory and what the model holds, per technique and number of devices."""
    data = configurations(measures, ["iteration_time_s", "tokens_per_s", "peak_memory_bytes", *COLUMNS.values()])
    others = varied(measures, besides=("technique", "devices", "repeat"))
    data.insert(0, "series", device_labels(data, others))
    shown = data.assign(technique=[unit("technique", name) for name in data["technique"]])

    figure, ((time, rate), (peak, model)) = plt.subplots(2, 2, figsize=(WIDTH_IN, 5.2))
    scale, seconds = unit_for(data["iteration_time_s"], SECONDS)
    grouped(time, shown, "technique", "iteration_time_s", scale)
    time.set(title="Iteration time", ylabel=f"Time per step ({seconds})")
    grouped(rate, shown, "technique", "tokens_per_s")
    rate.set(title="Throughput, without padding", ylabel="Tokens per second")
    scale, size = unit_for(data["peak_memory_bytes"], BYTES)
    grouped(peak, shown, "technique", "peak_memory_bytes", scale)
    kinds = set(data["device"])
    what = PEAK[kinds.pop()] if len(kinds) == 1 else "Resident (CPU), allocated (GPU)"
    peak.set(title="Peak memory of a rank", ylabel=f"{what} ({size})")
    _held(model, shown, numbered=not others)
    legend_below(figure, time, place="left")
    legend_below(figure, model, place="right")
    return figure, data


def _held(axes: Axes, data: pd.DataFrame, numbered: bool) -> None:
    """Stack what the model holds, one bar per technique and series; `numbered` by the devices where these tell all."""
    groups, names = list(dict.fromkeys(data["technique"])), list(dict.fromkeys(data["series"]))
    at, width = places(groups, names)
    where = pd.Series([at[key] for key in zip(data["technique"], data["series"], strict=True)], index=data.index)
    sizes = data[list(COLUMNS.values())].astype(float)
    scale, unit_name = unit_for(sizes.sum(axis=1), BYTES)
    stacked(axes, where, {part: sizes[column] * scale for part, column in COLUMNS.items()}, HELD, 0.9 * width)
    for index, row in data[sizes.isna().all(axis=1)].iterrows():
        absent(axes, where[index], row)
    group_axis(axes, groups, known=sizes.notna().any(axis=None))
    axes.set(title="Weights, and what training adds", ylabel=f"Held by a rank ({unit_name})")
    if len(names) > 1 and numbered:
        axes.set_xticks(where, data["devices"], minor=True, size=6)
        axes.tick_params(axis="x", which="minor", pad=1)
        axes.tick_params(axis="x", which="major", pad=9)
    elif len(names) > 1:
        axes.set_xlabel("Bars in the order of the legend", size="small")
