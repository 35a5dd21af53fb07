"""What one value of a parameter gains over another, per number of devices, all else being equal."""

from functools import partial

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from multicard.analysis.statistics import ratios_of, verdict
from multicard.figures.series import device_axis, labels, medians, unit, varied
from multicard.figures.style import (
    DASHES,
    MARKERS,
    WEAK,
    WIDTH_IN,
    NothingToShow,
    colours,
    explain_marks,
    legend_below,
    ordered_colours,
    plain_text,
    say,
)

# Values in the order in which each is compared with the first that completed.
ORDER: dict[str, tuple[object, ...]] = {
    "precision": ("fp64", "fp32", "bf16", "fp16"),
    "pin_memory": (False, True),
    "loader": ("torch", "dali"),
    "layout": ("nchw", "nhwc"),
    "binding": ("none", "numa"),
    "preset": ("paper", "tuned"),
}

# Values that need more words than a series name has.
WORDED = {
    ("pin_memory", False): "pageable memory",
    ("pin_memory", True): "Pinned",
    ("binding", "none"): "unbound ranks",
    ("binding", "numa"): "Bound",
}

ASIDE = 0.09  # shift between neighbouring series, in places of the axis


def gain(measures: pd.DataFrame, parameter: str) -> tuple[Figure, pd.DataFrame]:
    """Gain in speed per number of devices: a panel per compared value, a series per combination of what else varies.

    Of number formats also the accuracy, since a gain counts only while it holds.
    """
    data = gains(measures, parameter)
    if data.empty:
        raise NothingToShow(_why_empty(measures, parameter))
    compared = list(dict.fromkeys(data["value"]))
    accuracy = parameter == "precision" and measures["test_accuracy"].notna().any()
    count = len(compared) + accuracy

    figure, panels = plt.subplots(1, count, figsize=(WIDTH_IN, 3.2), squeeze=False)
    names = list(dict.fromkeys(data["series"]))
    by_size = set(varied(measures, besides=(parameter, "devices", "repeat"))) == {"image_size"}
    look = dict(zip(names, (ordered_colours if by_size else colours)(len(names)), strict=True))
    for axes, value in zip(panels[0], compared, strict=False):
        _gains(axes, data[data["value"] == value], look, sorted(data["devices"].unique()), names)
        base = data["base"].iloc[0]
        axes.set(title=f"{_worded(parameter, value)} over {_worded(parameter, base)}", xlabel=device_axis(measures))
    low, high = (f([axes.get_ylim()[end] for axes in panels[0][: len(compared)]]) for f, end in ((min, 0), (max, 1)))
    for axes in panels[0][: len(compared)]:
        axes.set_ylim(low, high)
    panels[0][0].set_ylabel("Gain in speed (%)")
    for axes in panels[0][1 : len(compared)]:
        axes.tick_params(labelleft=False)
    if accuracy:
        _accuracy(panels[0][-1], measures, parameter, look)
    legend_below(figure, *panels[0])
    return figure, data


gain_precision, gain_pin_memory, gain_loader, gain_layout, gain_binding, gain_preset = (
    partial(gain, parameter=parameter) for parameter in ORDER
)


def gains(measures: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """Gain in speed over the base value: one row per compared value and configuration of the other parameters.

    Columns: `series`, `base`, `value`, `devices`, the other varied parameters, `repeats` of the two together, the
    fewer; `gain` = time per step with the base over time with the value − 1, its interval `gain_low` and `gain_high`
    (empty where one of them has one repeat), and `verdict` on whether that is `more`, `less` or no (`none`) speed.
    """
    completed = measures[(measures["outcome"] == "completed") & measures["iteration_time_s"].notna()]
    others = varied(measures, besides=(parameter, "devices", "repeat"))
    there = [value for value in ORDER[parameter] if (completed[parameter] == value).any()]
    by = [*others, "devices"]
    pairs, rows = [], []
    for value in there[1:]:
        for key, group in completed.groupby(by, sort=False, dropna=False):
            base, mine = (
                group.loc[group[parameter] == each, "iteration_time_s"].tolist() for each in (there[0], value)
            )
            if base and mine:
                pairs.append((base, mine))
                rows.append({"base": there[0], "value": value, **dict(zip(by, key, strict=True))})
    for row, found in zip(rows, ratios_of(pairs), strict=True):
        for name, ratio in (("gain", found.value), ("gain_low", found.low), ("gain_high", found.high)):
            row[name] = None if ratio is None else ratio - 1
        row |= {"repeats": found.repeats, "verdict": verdict(found)}
    columns = ["base", "value", *by, "repeats", "gain", "gain_low", "gain_high", "verdict"]
    data = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(("gain", "gain_low", "gain_high"), float))
    data.insert(0, "series", [plain_text(name) for name in labels(data, others)] if others else "gain")
    return data


def _why_empty(measures: pd.DataFrame, parameter: str) -> str:
    """Why nothing can be compared: there are no two such runs, or there are and their times were not recorded."""
    name = parameter.replace("_", " ")
    completed = measures[measures["outcome"] == "completed"]
    others = [*varied(measures, besides=(parameter, "devices", "repeat")), "devices"]
    if (completed.groupby(others, dropna=False)[parameter].nunique() > 1).any():
        return f"completed runs differ in {name} alone, but not both have recorded step times"
    return f"no two completed runs differ in {name} alone"


def _worded(parameter: str, value: object) -> str:
    return WORDED.get((parameter, value)) or unit(parameter, value)


def _gains(axes: Axes, data: pd.DataFrame, look: dict, devices: list[int], names: list[str]) -> None:
    """Draw a line of points per series; the mark of a point says whether its difference is one."""
    axes.axhline(0, color="0.3", linewidth=1.0, zorder=1)
    for index, name in enumerate(names):
        rows = data[data["series"] == name].sort_values("devices")
        aside = ASIDE * (index - (len(names) - 1) / 2)
        where = [devices.index(count) + aside for count in rows["devices"]]
        marker, colour = MARKERS[index % len(MARKERS)], look[name]
        axes.errorbar(
            where,
            100 * rows["gain"],
            yerr=[100 * (rows["gain"] - rows["gain_low"]), 100 * (rows["gain_high"] - rows["gain"])],
            label=name if len(names) > 1 else "_",
            color=colour,
            marker=marker,
            linestyle=DASHES[index % len(DASHES)] if len(devices) > 1 else "none",
            capsize=3,
            markersize=5,
        )
        for weak, fill in WEAK.items():
            those = (rows["verdict"] == weak).tolist()
            axes.plot(
                [at for at, drawn in zip(where, those, strict=True) if drawn],
                100 * rows["gain"][those],
                linestyle="none",
                marker=marker,
                markersize=5,
                color=colour,
                zorder=3,
                **fill,
            )
    explain_marks(axes, set(data["verdict"]))
    axes.set_xlim(-0.5, len(devices) - 0.5)
    axes.xaxis.set_major_locator(FixedLocator(range(len(devices))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([str(count) for count in devices])
    axes.grid(visible=False, axis="x")


def _accuracy(axes: Axes, measures: pd.DataFrame, parameter: str, look: dict) -> None:
    """Draw the accuracy after the last epoch, a point per configuration, in the colour of its series."""
    others = varied(measures, besides=(parameter, "devices", "repeat"))
    data = medians(measures, ["test_accuracy"])
    data["series"] = labels(data, others) if others else "gain"
    values = [value for value in ORDER[parameter] if (data[parameter] == value).any()]
    axes.set(title="Accuracy beside it", ylabel="Test accuracy (%)")
    axes.yaxis.set_label_position("right")
    axes.yaxis.tick_right()
    if data["test_accuracy"].isna().all():
        say(axes, "not recorded")
        return
    names = list(dict.fromkeys(data["series"]))
    for index, name in enumerate(names):
        rows = data[data["series"] == name]
        aside = ASIDE * (index - (len(names) - 1) / 2)
        axes.plot(
            [values.index(value) + aside for value in rows[parameter]],
            100 * rows["test_accuracy"],
            linestyle="none",
            marker=MARKERS[index % len(MARKERS)],
            color=look.get(name, "0.3"),
            markersize=5,
        )
    axes.set_xticks(range(len(values)), [unit(parameter, value) for value in values])
    axes.set(xlim=(-0.5, len(values) - 0.5))
    axes.margins(y=0.2)
    low, high = axes.get_ylim()
    axes.set_ylim(low, min(high, 100 + 0.05 * (high - low)))
    axes.grid(visible=False, axis="x")
