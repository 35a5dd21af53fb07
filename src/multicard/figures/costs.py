"""What a result costs: time against device-hours of a whole training, energy, and the overhead of profiling."""

from collections.abc import Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.choice.choices import Choice, Choices, as_table, choices
from multicard.analysis.choice.learning import words_of
from multicard.analysis.comparison.comparisons import overheads
from multicard.analysis.evidence import DEVICE_WORDS, evidence_of, place_words
from multicard.analysis.runs.notices import UNCOUNTED
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.text import counted, for_figure, plural
from multicard.core.units import JOULES, MINUTES, number, unit_for
from multicard.experiment.workload import workload_of
from multicard.figures.bars import Colour, height_of, limits
from multicard.figures.labelling import boxes_of, label_points
from multicard.figures.points import draw_series, height_for, series_of
from multicard.figures.series import configuration_names, labels, named_runs
from multicard.figures.style import MARKERS, WIDTH_IN, NothingToShow, colours, legend_below

HOURS = ((86400.0, "days"), (3600.0, "h"), *MINUTES)
HOURS_OF = {"cuda": "GPU-hours", "cpu": "Process-hours"}
WORSE = "hollow: another is better"


def tradeoff(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Time of a whole training against its device-hours, a point per configuration, a panel per job and machine."""
    found = [job for job in choices(evidence_of(tables)) if job.rows]
    if not found:
        raise NothingToShow(f"{UNCOUNTED}: state samples_per_step")
    groups = list(dict.fromkeys(_learning(job, each) for job in found for each in job.rows))
    looks = dict(zip(groups, zip(colours(len(groups)), cycle(MARKERS)), strict=False))
    rows, columns = -(-len(found) // 2), min(2, len(found))
    height = 3.6 if columns == 1 else 0.6 + 2.8 * rows
    figure, panels = plt.subplots(rows, columns, figsize=(WIDTH_IN, height), squeeze=False)
    longest, places = 36 * 2 // columns, place_words([(job.machine, job.versions) for job in found])
    for axes, job, place in zip(panels.flat, found, places, strict=False):
        _tradeoff_panel(axes, job, looks)
        separator = ": " if columns == 1 else "\n"
        title = f"{for_figure(job.job, longest)}{separator}{number(job.work)} {plural(2, job.unit)}"
        axes.set_title("\n".join([*([for_figure(place, longest)] if place else []), title]))
        axes.xaxis.get_major_locator().set_params(nbins=10 // columns)
    for axes in panels.flat[len(found) :]:
        axes.remove()
    used = list(panels.flat[: len(found)])
    if any(each.is_worse for job in found for each in job.rows):
        used[0].plot([], [], linestyle="none", marker="o", color="0.3", markerfacecolor="white", label=WORSE)
    drawn = any(len(_line(group)) > 1 for job in found for group in job.groups)
    if drawn and len(groups) == 1 and groups[0] == "":  # nothing to tell apart
        used[0].plot([], [], color=looks[""][0], label="best on each number")
    legend_below(figure, *used)
    for axes, job in zip(used, found, strict=True):
        label_points(axes, _points(job), boxes_of(axes))
    return figure, as_table(found)


def _tradeoff_panel(axes: Axes, job: Choices, looks: dict[str, tuple[Colour, str]]) -> None:
    """Points with the range of a training, and through the front of each learning a line."""
    trainings = job.rows
    scale, unit = unit_for([each.time_s.value for each in trainings], HOURS)
    for group in job.groups:
        name = _learning(job, group[0])
        colour, marker = looks[name]
        for shown, fill in ((True, colour), (False, "white")):
            own = [each for each in group if each.is_worse is not shown]
            if not own:
                continue
            times = np.array([each.time_s.value for each in own])
            ends = [(each.time_s.low or each.time_s.value, each.time_s.high or each.time_s.value) for each in own]
            axes.errorbar(
                [each.device_hours for each in own],
                times * scale,
                yerr=np.abs(np.array(ends).T - times) * scale,
                linestyle="none", marker=marker, markersize=5, capsize=3, color=colour, markerfacecolor=fill,
                label=name if shown and name else "_", clip_on=False,
            )  # fmt: skip
        line = _line(group)
        if len(line) > 1:
            axes.plot(
                [each.device_hours for each in line],
                [each.time_s.value * scale for each in line],
                color=colour, linewidth=1.0, zorder=1, label="_",
            )  # fmt: skip
    axes.set(
        xlabel=f"{HOURS_OF[job.device]} of the training",
        ylabel=f"Time of the training ({unit})",
    )
    top = max(each.time_s.high or each.time_s.value for each in trainings) * scale
    right = max(each.device_hours for each in trainings)
    axes.set(xlim=(0, 1.15 * right), ylim=(0, 1.1 * top))


def _line(group: Sequence[Choice]) -> list[Choice]:
    """The best of a group on each number of devices, by time."""
    return sorted((each for each in group if each.is_best), key=lambda one: one.time_s.value)


def _points(job: Choices) -> list[tuple[float, float, str]]:
    scale, _ = unit_for([each.time_s.value for each in job.rows], HOURS)
    points = []
    for each in job.rows:
        parameters = pd.DataFrame([dict(each.configuration.parameters)])
        name = counted(each.devices, DEVICE_WORDS[job.device]) + "".join(
            f", {text}" for text in labels(parameters, list(job.recipe_names)) if each.rivals > 1
        )
        points.append((each.device_hours, each.time_s.value * scale, name))
    return points


def _learning(job: Choices, training: Choice) -> str:
    """What tells the learning of a training from that of others of its job; empty where nothing does.

    What follows from the rest, such as the learning rate from the technique, is left out.
    """
    told = list(dict.fromkeys(name for each in job.rows for name in each.changes))
    for name in tuple(told):
        others = [other for other in told if other != name]
        if others and _values(job, others) == _values(job, told):
            told = others
    return for_figure(words_of({name: value for name, value in training.learning.items() if name in told}), 90)


def _values(job: Choices, names: Sequence[str]) -> int:
    """How many different values some parts of the learning have together."""
    return len({tuple(each.learning.get(name) for name in names) for each in job.rows})


def energy(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Energy of the GPUs per sample, of LLM runs per token, over devices."""
    counted = workload_of(measures).unit
    value, of = counted.energy, counted.name
    if measures[value].isna().all():
        why = " (a CPU has no meter)" if set(measures["device"]) == {"cpu"} else ": the GPUs were not metered"
        raise NothingToShow(f"no energy was recorded{why}")
    data, runs = series_of(measures, [value])
    figure, axes = plt.subplots(figsize=(WIDTH_IN, height_for(data)))
    scale, unit = unit_for(data[value], JOULES)
    draw_series(axes, data, value, f"Energy per {of}, all GPUs", f"Energy per {of} ({unit})", scale, runs)
    legend_below(figure, axes)
    return figure, data


def profiler_overhead(measures: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """How much longer a step is while the profiler records; the marker says whether that is a difference."""
    data = overheads(measures)
    data.insert(0, "configuration", configuration_names(measures, data))
    if data.empty:
        raise NothingToShow("no profiled steps were recorded")
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.0 + height_of(len(data), 0.26)))
    label, runs = "Profiling overhead (%)", named_runs(measures)
    shown, runs = (each.assign(series=each["configuration"]) for each in (data, runs))
    draw_series(axes, shown, "profiler_overhead", "Profiling overhead", label, 100.0, runs, baseline=0, several=False)
    if len(data) > 1:
        points, repeats = (100 * each["profiler_overhead"].astype(float) for each in (data, runs))
        left, right = limits(points, *axes.get_xlim(), repeats)
        axes.set_xlim(min(left, 0), right)
    legend_below(figure, axes)
    return figure, data
