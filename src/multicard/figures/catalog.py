"""The figures by name, and how they become files."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.provenance import notes, synthetic
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.files import atomic_write
from multicard.experiment.config import FIGURE_AXIS, FIGURE_WORKLOAD
from multicard.figures import (
    activity,
    breakdown,
    costs,
    over_time,
    precision,
    scaling,
    shares,
    sizes,
    techniques,
    text_datasets,
)
from multicard.figures.captions import CAPTIONS
from multicard.figures.gains import ORDER, gain_of
from multicard.figures.style import WIDTH_IN, NothingToShow, plain_text, styled

Drawn = tuple[Figure, pd.DataFrame]

PICTURES = ("png", "svg", "pdf")
NOTE_WIDTH = 125  # characters of a line over the figure


@dataclass(frozen=True)
class Entry:
    """A figure of the catalog.

    Attributes
    ----------
    id
        Its name in a configuration and in the names of its files.
    question, caption
        What it asks, and how it is read.
    answers
        The paper's figure that it answers, as "A, figure 2"; None where none is known.
    needs
        Parameter that must vary in the scenario, None if none must.
    workload
        The workload that it is about, None for all.
    drawing
        Draws it of a scenario with completed runs, or raises `NothingToShow`.
    """

    id: str
    question: str
    caption: str
    answers: str | None
    needs: str | None
    workload: str | None
    drawing: Callable[[ScenarioTables], Drawn]

    def draw(self, gathered: ScenarioTables) -> Drawn:
        """Draw the figure of a scenario, with the numbers that it shows.

        Over it stand the runs without numbers, what differs among machines and versions, and the word synthetic where
        runs are made up; then the numbers too have a column `synthetic`. Without anything to show the figure says why,
        and so does the table.
        """
        measures = gathered.measures
        with styled():
            try:
                if not (measures["outcome"] == "completed").any():
                    raise NothingToShow("No run completed")
                figure, data = self.drawing(gathered)
                made_up = synthetic(gathered)
                data = data.assign(synthetic=made_up) if made_up else data
            except NothingToShow as nothing:
                why = str(nothing)
                figure, data = _empty(f"{why[0].upper()}{why[1:]}"), pd.DataFrame({"nothing_to_show": [why]})
            shown = [plain_text(note, len(note)) for note in notes(gathered)]
            lines = [line for note in shown for line in textwrap.wrap(note, NOTE_WIDTH)]
            if lines:
                figure.suptitle("\n".join(lines), fontsize="small", x=0.01, ha="left")
        return figure, data


def _of_measures(drawing: Callable[[pd.DataFrame], Drawn]) -> Callable[[ScenarioTables], Drawn]:
    """Let a drawing that needs the measures alone take all the tables."""
    return lambda gathered: drawing(gathered.measures)


_DRAWINGS: dict[str, Callable[[ScenarioTables], Drawn]] = {
    "iteration_time": _of_measures(scaling.iteration_time),
    "speedup": _of_measures(scaling.speedup),
    "image_size_scaling": _of_measures(sizes.sizes),
    "step_breakdown": _of_measures(breakdown.phases),
    "time_shares": shares.shares,
    "cuda_api": activity.cuda_api,
    "kernel_classes": activity.kernel_classes,
    "memory_transfers": activity.memory_transfers,
    "device_time": activity.device_time,
    "precision": _of_measures(precision.precision),
    **{f"gain_{parameter}": _of_measures(gain_of(parameter)) for parameter in ORDER},
    "techniques": _of_measures(techniques.techniques),
    "text_datasets": _of_measures(text_datasets.text_datasets),
    "step_times": over_time.step_times,
    "accuracy": over_time.accuracy,
    "energy": _of_measures(costs.energy),
    "profiler_overhead": _of_measures(costs.profiler_overhead),
}

FIGURES: dict[str, Entry] = {
    name: Entry(
        id=name,
        question=words.question,
        caption=words.caption,
        answers=words.answers,
        needs=FIGURE_AXIS.get(name),
        workload=FIGURE_WORKLOAD.get(name),
        drawing=_DRAWINGS[name],
    )
    for name, words in CAPTIONS.items()
}


def draw(name: str, gathered: ScenarioTables, stem: Path) -> None:
    """Draw one figure of a scenario as `stem`.png, .svg and .pdf, and what it shows as `stem`.csv."""
    mpl.use("Agg")
    figure, data = FIGURES[name].draw(gathered)
    with styled():
        # One layout serves all formats; an engine, even one that does nothing, would have each of them drawn twice.
        figure.draw_without_rendering()
        mpl.rcParams["figure.constrained_layout.use"] = False
        figure.set_layout_engine(None)
        for suffix in PICTURES:
            with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, metadata=_undated(suffix))
        with atomic_write(stem.with_name(f"{stem.name}.csv")) as temporary:
            data.to_csv(temporary, index=False)
        plt.close(figure)


def _empty(why: str) -> Figure:
    figure = plt.figure(figsize=(WIDTH_IN, 1.2))
    figure.text(0.5, 0.5, textwrap.fill(why, 70), ha="center", va="center", fontsize="large")
    return figure


def _undated(suffix: str) -> dict[str, None]:
    """Metadata without a date, so that the same data give the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
