"""How a figure of the catalog becomes files."""

import textwrap
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.provenance import notes, synthetic
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.core.files import atomic_write
from multicard.experiment.figures import FIGURES
from multicard.figures.points import bars_of, mark_cuts
from multicard.figures.style import WIDTH_IN, NothingToShow, lay_out, note_above, styled

FORMATS = ("png", "svg", "pdf")


def draw_scenario(names: Iterable[str], scenario: Path, out: Path) -> None:
    """Draw figures of the scenario whose measures and tables a folder holds, into the folder `out`.

    Raises
    ------
    UserError
        If they are not there, or cannot be read.
    """
    tables = ScenarioTables(scenario)
    for name in names:
        write(name, tables, out / name)


def write(name: str, tables: ScenarioTables, stem: Path) -> None:
    """Draw one figure of a scenario as `stem`.png, .svg and .pdf, and what it shows as `stem`.csv."""
    mpl.use("Agg")
    save(*draw(name, tables), stem)


def save(figure: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Write a figure as `stem`.png, .svg and .pdf, and the numbers that it shows as `stem`.csv."""
    with styled():
        # One layout serves all formats; an engine, even one that does nothing, would have each of them drawn twice.
        lay_out(figure)
        mpl.rcParams["figure.constrained_layout.use"] = False
        figure.set_layout_engine(None)
        for suffix in FORMATS:
            with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, metadata=_undated(suffix))
        with atomic_write(stem.with_name(f"{stem.name}.csv")) as temporary:
            data.to_csv(temporary, index=False)
        plt.close(figure)


def draw(name: str, tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw a figure of a scenario; with the table of the numbers that it shows.

    Lines above it state runs without numbers, several machines or versions, synthetic runs, and runs whose numbers are
    in doubt; with synthetic runs the table has a column `synthetic`. Without anything to show the figure says why, and
    so does the table.
    """
    entry = FIGURES[name]
    measures = tables.measures
    with styled():
        try:
            if not (measures["outcome"] == "completed").any():
                raise NothingToShow("No run completed")
            module, function = entry.drawing.split(":")
            drawing = getattr(import_module(module), function)
            figure, data = drawing(tables if entry.needs_tables else measures)
            is_synthetic = synthetic(tables)
            data = data.assign(synthetic=is_synthetic) if is_synthetic else data
        except NothingToShow as nothing:
            why = str(nothing)
            figure, data = _empty(f"{why[0].upper()}{why[1:]}"), pd.DataFrame({"nothing_to_show": [why]})
        for axes in figure.axes:
            mark_cuts(axes)
        note_above(figure, [*notes(tables, entry.profiled), *_repeats(figure, data)])
    return figure, data


def _repeats(figure: Figure, data: pd.DataFrame) -> list[str]:
    """How many repeats there are behind each mean, and what the whiskers are."""
    counts = data["repeats"][data["repeats"] > 0] if "repeats" in data else pd.Series(dtype=int)
    if counts.empty:
        return []
    low, high = int(counts.min()), int(counts.max())
    if high == 1:
        return ["n=1: a single repeat of each, so no intervals"]
    n = f"n={low}" if low == high else f"n={low} to {high}"
    whiskers = any(bars_of(container) for axes in figure.axes for container in axes.containers)
    return [f"Mean of {n} repeats{', 95% CI' if whiskers else ''}"]


def _empty(why: str) -> Figure:
    figure = plt.figure(figsize=(WIDTH_IN, 1.2))
    figure.text(0.5, 0.5, textwrap.fill(why, 70), ha="center", va="center", fontsize="large")
    return figure


def _undated(suffix: str) -> dict[str, None]:
    """Metadata without a date, so that the same data give the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
