"""Bus bandwidth of all-reduces over the size of their messages."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.evidence import DEVICE_WORDS
from multicard.analysis.machine.limits import MachineLimits, all_reduces
from multicard.core.text import counted, for_figure
from multicard.figures.style import (
    MARKERS,
    WIDTH_IN,
    NothingToShow,
    bandwidth_axes,
    legend_below,
    note_above,
    ordered_colours,
    styled,
)


def draw_all_reduces(limits: MachineLimits) -> tuple[Figure, pd.DataFrame]:
    """Draw the all-reduces of a machine; with the table of the numbers shown.

    Raises
    ------
    NothingToShow
        If none was measured, as on a single device.
    """
    data = all_reduces(limits)
    if data.empty:
        raise NothingToShow("no all-reduce was measured: it takes two devices")
    with styled():
        return _draw(limits, data), data


def _draw(limits: MachineLimits, data: pd.DataFrame) -> Figure:
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 3.6))
    counts = list(dict.fromkeys(data["devices"]))
    for number, (devices, colour) in enumerate(zip(counts, ordered_colours(len(counts)), strict=True)):
        own = data[data["devices"] == devices]
        rate = own["bus_bandwidth_bytes_per_s"]
        low, high = (own[f"bus_bandwidth_bytes_per_s_{end}"].fillna(rate) for end in ("low", "high"))
        axes.errorbar(
            own["message_bytes"], rate, [rate - low, high - rate], linestyle="none", capsize=2, color=colour,
            marker=MARKERS[number % len(MARKERS)], label=counted(devices, DEVICE_WORDS[limits.device]),
        )  # fmt: skip
    bandwidth_axes(axes)
    host = for_figure(str((limits.host or {}).get("name", "unknown host")))
    axes.set_title(f"All-reduce on {host}")
    synthetic = ["Synthetic"] if limits.synthetic else []
    notes = [*synthetic, *(note for part in limits.parts if part.devices for note in part.notes)]
    note_above(figure, notes)
    legend_below(figure, axes)
    return figure
