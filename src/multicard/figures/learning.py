"""What the training learns: losses over steps and epochs, and the rewards of DPO."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.runs import per_run
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.experiment.workload import workload_of
from multicard.figures.series import device_labels, only_count, unit
from multicard.figures.style import DASHES, MARKERS, WIDTH_IN, NothingToShow, colours, legend_below
from multicard.workloads.llm.technique import TECHNIQUES

# Title and label of each panel of the rewards.
REWARDS = {
    "reward_chosen": ("Chosen answers", "Mean reward"),
    "reward_rejected": ("Rejected answers", "Mean reward"),
    "reward_margin": ("Margin", "Chosen − rejected reward"),
    "reward_accuracy": ("Accuracy", "Chosen answer preferred\n(% of pairs)"),
}

MARKED = 25  # points up to which each has a marker


def loss(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Training loss over steps, of vision runs also test loss over epochs; a line per run.

    Of language models losses of different techniques have a panel each, or else those of different data sets.
    """
    apart = _panel_parameter(tables)
    names = run_names(tables, besides=(apart,) if apart else ())
    if apart and only_count(tables.measures) is None:  # the panels name `apart`, the legend what varies within one
        names = {
            run: name
            for value in _ordered(apart, tables)
            for run, name in run_names(tables, besides=(apart,), **{apart: value}).items()
        }
    steps = of_named(per_run.over_steps(tables, ["loss"]), names).dropna(subset=["loss"])
    if steps.empty:
        raise NothingToShow("no losses were recorded")
    tests = of_named(tables.table("epochs")[["run", "epoch", "test_loss"]], names).dropna(subset=["test_loss"])
    panels = {"Training loss": steps}
    if apart:
        value = steps["run"].map(tables.measures.set_index("run")[apart])
        steps.insert(0, apart, value)
        panels = {f"Training loss, {unit(apart, each)}": steps[value == each] for each in _ordered(apart, tables)}
        panels = {title: rows for title, rows in panels.items() if len(rows)}
    count = len(panels) + (len(tests) > 0)
    rows = -(-count // 2)
    figure, places = plt.subplots(
        rows, min(count, 2), figsize=(WIDTH_IN, 0.8 + 2.6 * rows), squeeze=False, sharex=len(tests) == 0
    )
    every = places.flat
    for axes, (title, data) in zip(every, panels.items(), strict=False):
        run_lines(axes, data, "step", "loss", names)
        axes.set(title=title, xlabel="Optimizer step", ylabel="Loss")
    for axes in every[len(panels) : count]:
        run_lines(axes, tests, "epoch", "test_loss", names)
        axes.set(title="Test loss", xlabel="Epoch", ylabel="Loss after the epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in every[:count]:
        axes.set_ylim(bottom=0)
        axes.tick_params(labelbottom=True)
    for axes in every[count:]:
        axes.remove()
    legend_below(figure, *every[:count])
    return figure, pd.concat([steps, tests], ignore_index=True) if len(tests) else steps


def _panel_parameter(tables: ScenarioTables) -> str | None:
    """The parameter of language models that varies and makes losses incomparable."""
    if workload_of(tables.measures).name != "llm":
        return None
    return next((name for name in ("technique", "dataset") if name in varied(tables.measures, besides=())), None)


def _ordered(parameter: str, tables: ScenarioTables) -> list[str]:
    """Values of a parameter among the runs: techniques in the order of their registry, others in that of the runs."""
    found = list(dict.fromkeys(tables.measures[parameter]))
    return sorted(found, key=list(TECHNIQUES).index) if parameter == "technique" else found


def dpo_rewards(tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Rewards of chosen and rejected answers, their margin and accuracy over steps, a panel each; a line per run."""
    steps = per_run.over_steps(tables, ["reward_chosen", "reward_rejected", "reward_accuracy"])
    steps.insert(4, "reward_margin", steps["reward_chosen"] - steps["reward_rejected"])
    data = of_named(steps, run_names(tables)).dropna(subset=list(REWARDS))
    if data.empty:
        raise NothingToShow("no rewards were recorded: only DPO has them")
    # Runs of other techniques take no colours.
    names = {run: name for run, name in run_names(tables, technique="dpo").items() if run in set(data["run"])}
    data = data.assign(series=data["run"].map(names))
    figure, panels = plt.subplots(2, 2, figsize=(WIDTH_IN, 5.0), sharex=True)
    for axes, (name, (title, label)) in zip(panels.flat, REWARDS.items(), strict=True):
        share = name == "reward_accuracy"
        axes.axhline(50 if share else 0, color="0.3", linewidth=1.0, zorder=1)
        run_lines(axes, data, "step", name, names, 100.0 if share else 1.0)
        axes.set(title=title, ylabel=label)
        if share:
            axes.set_ylim(-4, 104)
    low, high = (f(axes.get_ylim()[end] for axes in panels[0]) for end, f in ((0, min), (1, max)))
    for above, below in zip(*panels, strict=True):
        above.set_ylim(low, high)
        below.set_xlabel("Optimizer step")
    legend_below(figure, panels[0, 0])
    return figure, data


def run_names(tables: ScenarioTables, besides: tuple[str, ...] = (), **only: str) -> dict[str, str]:
    """Name of the configuration of each completed run by what varies, `besides` some; of those with such parameters."""
    measures = tables.measures
    for parameter, value in only.items():
        measures = measures[measures[parameter] == value]
    completed = measures[measures["outcome"] == "completed"]
    names = device_labels(completed, varied(measures, besides=("devices", "repeat", *besides)))
    return dict(zip(completed["run"], names, strict=True))


def of_named(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The rows of the runs that have a name, with that as their `series`."""
    rows = rows[rows["run"].isin(names)]
    return rows.assign(series=rows["run"].map(names))[["series", *rows]]


def run_lines(axes: Axes, data: pd.DataFrame, x: str, y: str, names: Mapping[str, str], scale: float = 1.0) -> None:
    """Draw a line per run; the look of a configuration depends on all `names`, so that it is the same in all panels."""
    series = list(dict.fromkeys(names.values()))
    for index, (name, colour) in enumerate(zip(series, colours(len(series)), strict=True)):
        for number, (_, run) in enumerate(data[data["series"] == name].groupby("run", sort=False)):
            axes.plot(
                run[x],
                run[y] * scale,
                color=colour,
                linestyle=DASHES[index % len(DASHES)],
                linewidth=1.2,
                marker=MARKERS[index % len(MARKERS)] if len(run) <= MARKED else None,
                markersize=3.5,
                markerfacecolor="white" if index % 2 else colour,
                label=name if number == 0 else "_",
            )
