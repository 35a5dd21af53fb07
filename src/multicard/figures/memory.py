"""Memory of training: its peaks, and over time."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import configurations, varied
from multicard.analysis.runs import per_run
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.text import counted
from multicard.core.units import BYTES, MINUTES, unit_for
from multicard.figures.bars import grouped, height_of
from multicard.figures.learning import run_names
from multicard.figures.series import configuration_names, device_word, labels, named_runs
from multicard.figures.style import DASHES, WIDTH_IN, NothingToShow, colours, legend_below

# What each measure of memory is on a GPU, the peak also on a CPU.
KINDS = {
    "peak_memory_bytes": "allocated (PyTorch)",
    "peak_reserved_bytes": "reserved (PyTorch)",
    "device_memory_used_bytes": "used by everything (NVML)",
}
MOST_LINES = 8  # of one panel, where numbers of devices could have a panel each
THINNEST, THICKEST = 1.1, 3.2  # lines, in points
RESIDENT = "resident (CPU process)"


def memory(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Peak memory of the fullest device, a group of bars per configuration: allocated, reserved, used by everything."""
    known = [kind for kind in KINDS if measures[kind].notna().any()]
    if not known:
        raise NothingToShow("no memory was recorded")
    data = configurations(measures, known)
    data.insert(0, "configuration", configuration_names(measures, data))
    shown, runs = (_by_kind(each, known) for each in (data, named_runs(measures)))

    kinds = shown["series"].nunique()
    height = 1.1 + height_of(len(data), max(0.34, 0.14 * kinds))
    figure, axes = plt.subplots(figsize=(WIDTH_IN, height))
    scale, unit = unit_for(shown["bytes"], BYTES)
    grouped(axes, shown, "configuration", "bytes", scale, horizontal=True, runs=runs)
    kinds_of_device = set(data["device"])
    place = {"cuda": "on the fullest GPU", "cpu": "of the largest process"}
    where = place[kinds_of_device.pop()] if len(kinds_of_device) == 1 else "per device"
    axes.set(title=f"Peak memory {where}", xlabel=f"Peak memory ({unit})")
    legend_below(figure, axes)
    return figure, data


def _by_kind(rows: pd.DataFrame, kinds: list[str]) -> pd.DataFrame:
    """The rows once for each kind of memory, its name in `series` and its size in `bytes`."""
    parts = []
    for kind in kinds:
        part = rows.copy().rename(columns={f"{kind}{end}": f"bytes{end}" for end in ("", "_low", "_high")})
        # What did not complete, or has a single kind of memory, as on CPUs, has one bar.
        part = part if kind == kinds[0] else part[part["bytes"].notna() & (part["device"] != "cpu")]
        parts.append(part.assign(series=part["device"].map({"cpu": RESIDENT}).fillna(KINDS[kind])))
    columns = ["configuration", "series", "repeats", "outcome", "bytes", "bytes_low", "bytes_high"]
    return pd.concat(parts, ignore_index=True).filter(columns)


def memory_over_time(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Memory over the time of each configuration's first repeat, by its steps."""
    names = run_names(tables)
    runs = pd.DataFrame(names.items(), columns=["run", "series"]).drop_duplicates("series")
    runs["devices"] = runs["run"].map(tables.measures.set_index("run")["devices"])
    steps = runs.merge(per_run.memory_of_steps(tables), on="run")
    kinds = [kind for kind in ("peak_memory_bytes", "peak_reserved_bytes") if steps[kind].notna().any()]
    if not kinds:
        raise NothingToShow("no memory over time was recorded")
    on_cpu = set(tables.measures["device"]) == {"cpu"}
    panels = [(kind, RESIDENT if on_cpu else KINDS[kind]) for kind in kinds]

    counts = sorted(runs["devices"].unique())
    apart = len(counts) > 1 and len(runs) > MOST_LINES
    if apart:  # a row of panels per number of devices, whose names leave it out
        runs["line"] = runs["run"].map(_names_without_devices(tables))
        layout = np.arange(len(counts) * len(panels)).reshape(len(counts), -1).tolist()
    else:
        runs["line"] = runs["series"]
        layout = [list(range(len(panels)))]
    height = (1.7 if apart else 2.7) * len(layout)
    figure, places = plt.subplot_mosaic(layout, figsize=(WIDTH_IN, 0.6 + height))
    scale, unit = unit_for([steps[kind].max() for kind in kinds], BYTES)
    factor, seconds = unit_for(steps["time_s"], MINUTES)
    lines = list(dict.fromkeys(runs["line"]))
    for number, axes in places.items():
        row, place = divmod(number, len(panels))
        kind, what = panels[place]
        shown = steps.assign(time=steps["time_s"] * factor, shown=steps[kind] * scale)
        shown = shown.merge(runs[["run", "line"]], on="run")
        _lines(axes, shown[shown["devices"] == counts[row]] if apart else shown, lines)
        # The two views of the steps have one scale; memory that never changes is not at the edge.
        axes.set(ylim=(0, 1.08 * max(steps[each].max() for each in kinds) * scale))
        if row == 0:
            axes.set_title(what[0].upper() + what[1:])
        if apart:  # narrow, and the title says which
            axes.set_xlabel(f"Time ({seconds})" if row == len(counts) - 1 else "")
        else:
            axes.set_xlabel(f"Time since the first step ({seconds})")
        which = f"{counted(int(counts[row]), device_word(tables.measures))}\n" if apart else ""
        if place == 0 or not apart:
            axes.set_ylabel(f"{which if place == 0 else ''}Memory ({unit})")
    legend_below(figure, *(places.values() if apart else [places[0]]))
    return figure, steps


def _names_without_devices(tables: ScenarioTables) -> dict[str, str]:
    completed = tables.measures[tables.measures["outcome"] == "completed"]
    return dict(zip(completed["run"], labels(completed, varied(tables.measures, ("devices", "repeat"))), strict=True))


def _lines(axes: Axes, data: pd.DataFrame, series: list[str]) -> None:
    """Draw a line of steps per configuration, each thinner than those before, so that none is hidden."""
    for index, (name, colour) in enumerate(zip(series, colours(len(series)), strict=True)):
        rows = data[data["line"] == name]
        if rows.empty:
            continue
        width = THINNEST + (THICKEST - THINNEST) * (1 - index / max(1, len(series) - 1))
        look = {"color": colour, "linestyle": DASHES[index % len(DASHES)], "linewidth": width}
        axes.plot(rows["time"], rows["shown"], drawstyle="steps-post", label=name, **look)
