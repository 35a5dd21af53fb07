"""Language-model tuning: what a technique costs in time and memory, and what the data set changes."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import tokens_per_rank, varied
from multicard.core.units import BYTES, SECONDS, unit_for
from multicard.figures.bars import absent, group_axis, grouped, places, stacked, whiskers
from multicard.figures.labelling import label_points
from multicard.figures.series import compared, labels
from multicard.figures.style import MARKERS, WIDTH_IN, colours, legend_below
from multicard.workloads.llm.technique import TECHNIQUES

# Parts of the model state of a rank, in colours that no series has.
STATE = {
    "weights": ("#7F7F7F", ""),
    "adapters": ("#F0E442", "///"),
    "gradients": ("#56B4E9", "..."),
    "optimizer state": ("#CC79A7", "\\\\\\"),
}
COLUMNS = {part: f"{part.removesuffix(' state')}_bytes" for part in STATE}

# What peak memory is on each kind of device.
PEAK = {"cuda": "Allocated, per GPU", "cpu": "Resident, CPU process"}


def techniques(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time, throughput, peak memory and model state per technique and number of devices."""
    names = varied(measures, besides=("technique", "devices", "repeat"))
    own = [name for name in names if any(name in entry.own_parameters for entry in TECHNIQUES.values())]
    others = [name for name in names if name not in own]
    values = ["iteration_time_s", "tokens_per_s", "peak_memory_bytes", *COLUMNS.values()]
    data, runs = compared(measures, values, others)
    shown, runs = (
        each.assign(technique=[kind.replace(" ", "\n") for kind in labels(each, ["technique", *own])])
        for each in (data, runs)
    )

    figure, ((time, rate), (peak, model)) = plt.subplots(2, 2, figsize=(WIDTH_IN, 5.2))
    scale, seconds = unit_for(data["iteration_time_s"], SECONDS)
    grouped(time, shown, "technique", "iteration_time_s", scale, runs=runs)
    time.set(title="Iteration time", ylabel=f"Time per step ({seconds})")
    grouped(rate, shown, "technique", "tokens_per_s", runs=runs)
    rate.set(title="Throughput, without padding", ylabel="Tokens per second")
    scale, size = unit_for(data["peak_memory_bytes"], BYTES)
    grouped(peak, shown, "technique", "peak_memory_bytes", scale, runs=runs)
    kinds = set(data["device"])
    what = PEAK[kinds.pop()] if len(kinds) == 1 else "Resident (CPU), allocated (GPU)"
    peak.set(title="Peak memory per rank", ylabel=f"{what} ({size})")
    _state(model, shown, numbered=not others)
    if own:
        for axes in (time, rate, peak, model):
            axes.tick_params(axis="x", which="major", labelsize="x-small")
    legend_below(figure, time, place="left")
    legend_below(figure, model, place="right")
    return figure, data


def _state(axes: Axes, data: pd.DataFrame, numbered: bool) -> None:
    """Stack the model state, a bar per technique and series; `numbered` by devices where nothing else varies."""
    groups, names = list(dict.fromkeys(data["technique"])), list(dict.fromkeys(data["series"]))
    at, width = places(groups, names)
    where = pd.Series([at[key] for key in zip(data["technique"], data["series"], strict=True)], index=data.index)
    sizes = data[list(COLUMNS.values())].astype(float)
    scale, unit_name = unit_for(sizes.sum(axis=1), BYTES)
    stacked(axes, where, {part: sizes[column] * scale for part, column in COLUMNS.items()}, STATE, 0.9 * width)
    for index, row in data[sizes.isna().all(axis=1)].iterrows():
        absent(axes, where[index], row)
    group_axis(axes, groups, known=sizes.notna().any(axis=None))
    axes.set(title="Model-state memory", ylabel=f"Per rank ({unit_name})")
    if len(names) > 1 and numbered:
        axes.set_xticks(where, data["devices"], minor=True, size=6)
        axes.tick_params(axis="x", which="minor", pad=1)
        axes.tick_params(axis="x", which="major", pad=9)
    elif len(names) > 1:
        axes.set_xlabel("Bars in the order of the legend", size="small")


MARKED = 0.005  # share of padding from which on it is drawn
MARGIN = 1.45  # length of the axis over the longest bar, for the text after it


def text_datasets(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Iteration time and length of the samples per data set, and the time against the tokens of a step."""
    values = ["iteration_time_s", "tokens_per_sample", "tokens_per_step", "padding_share", "cut_share"]
    others = varied(measures, besides=("dataset", "devices", "repeat"))
    data, runs = compared(measures, values, others)
    scale, unit = unit_for(data["iteration_time_s"], SECONDS)

    height = 0.7 + data["dataset"].nunique() * max(0.3, 0.16 * data["series"].nunique())
    figure, panels = plt.subplot_mosaic(
        [["time", "length"], ["both", "both"]], figsize=(WIDTH_IN, height + 3.1), height_ratios=[height, 2.6]
    )
    time, length, both = (panels[name] for name in ("time", "length", "both"))
    grouped(time, data, "dataset", "iteration_time_s", scale, horizontal=True, runs=runs)
    time.set(title="Iteration time", xlabel=f"Time per step ({unit})")
    _lengths(length, data)
    length.set(title="Sample length", xlabel="Mean tokens per sample")
    points = _points(data, scale)
    _time_by_tokens(both, points, list(dict.fromkeys(data["series"])))
    both.set(title="Iteration time by tokens", xlabel="Tokens per step and rank", ylabel=f"Time per step ({unit})")
    legend_below(figure, time, both)
    _name_points(both, points, ["dataset", *others])
    return figure, data


def _lengths(axes: Axes, data: pd.DataFrame) -> None:
    """Draw tokens per sample, one bar per data set where all runs agree, and the shares of padding and truncation."""
    differ = data.groupby("dataset")["tokens_per_sample"].nunique().max() > 1  # as when tokenizers do
    bars = data if differ else data.assign(series="all")
    bars = bars.groupby(["dataset", "series"], sort=False, as_index=False).first().assign(repeats=1)
    grouped(axes, bars, "dataset", "tokens_per_sample", horizontal=True, palette=None if differ else ["#949494"])
    axes.tick_params(labelleft=False)
    axes.set_xlim(right=MARGIN * axes.get_xlim()[1])
    at, _ = places(list(dict.fromkeys(bars["dataset"])), list(dict.fromkeys(bars["series"])))
    for dataset, name, tokens in bars[["dataset", "series", "tokens_per_sample"]].dropna().itertuples(index=False):
        alike = data[(data["dataset"] == dataset) & (not differ or data["series"] == name)]
        words = [_share(alike, "padding", "padding"), _share(alike, "cut", "truncated")]
        axes.annotate(
            (", " if differ else "\n").join(word for word in words if word),
            (tokens, at[dataset, name]),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
        )


def _share(rows: pd.DataFrame, what: str, word: str) -> str | None:
    """Share of padding or of truncated samples, as a range where rows differ; None where there is none."""
    share = 100 * rows[f"{what}_share"]
    low, high = share.min(), share.max()
    if not high > 0:  # also where it is not known
        return None
    number = f"{low:.0f}" if f"{low:.0f}" == f"{high:.0f}" else f"{low:.0f}–{high:.0f}"
    return f"{number if high >= 0.5 else '<1'}% {word}"


def _points(data: pd.DataFrame, scale: float) -> pd.DataFrame:
    """Place of each known configuration: `x` without and `padded` with padding, `y` its time, with its whiskers."""
    below, above = whiskers(data, "iteration_time_s", scale)
    tokens = tokens_per_rank(data)
    where = {"x": tokens["tokens"], "padded": tokens["padded_tokens"], "y": data["iteration_time_s"] * scale}
    points = data.assign(**where, below=below, above=above)
    return points.dropna(subset=["x", "y"])


def _time_by_tokens(axes: Axes, points: pd.DataFrame, names: list[str]) -> None:
    """Draw a point per data set and series; a line leads to where it would be if padding counted."""
    for index, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        rows = points[points["series"] == name]
        axes.errorbar(
            rows["x"],
            rows["y"],
            yerr=[rows["below"], rows["above"]],
            label=name,
            color=colour,
            marker=MARKERS[index % len(MARKERS)],
            linestyle="none",
            capsize=3,
            markersize=5,
            markerfacecolor="white" if index % 2 else colour,
        )
    rows = points[points["padding_share"] > MARKED]
    if len(rows):
        axes.hlines(rows["y"], rows["x"], rows["padded"], color="0.5", linewidth=0.9, zorder=1)
        axes.plot(
            rows["padded"], rows["y"], linestyle="none", marker="|", color="0.4", markersize=7, label="with padding"
        )
    axes.margins(x=0.1, y=0.15)
    # From zero on, times that are proportional to tokens lie on a line through the corner.
    axes.set(xlim=(0, None), ylim=(0, None))


def _name_points(axes: Axes, points: pd.DataFrame, by: list[str]) -> None:
    """Name each point, or the highest of those that differ in the number of devices only: they stand in a column."""
    highest = points.loc[points.groupby(by, sort=False, dropna=False)["y"].idxmax()]
    low, high = (points["y"] + points[end].fillna(0.0) * sign for end, sign in (("below", -1), ("above", 1)))
    drawn = [
        *zip(points["x"], points["y"], points["padded"], points["y"], strict=True),
        *zip(points["x"], low, points["x"], high, strict=True),
    ]
    label_points(axes, zip(highest["x"], highest["y"], highest["dataset"], strict=True), drawn)
