"""How a figure of the catalog becomes files."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from multicard.analysis.provenance import notes, synthetic
from multicard.analysis.scenario_tables import ScenarioTables, write_csv
from multicard.core.files import atomic_write
from multicard.figures.catalog import catalog
from multicard.figures.style import WIDTH_IN, NothingToShow, note_above, styled

FORMATS = ("png", "svg", "pdf")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # metadata: the same data give the same file


def draw_scenario(names: Iterable[str], scenario: Path, out: Path) -> None:
    """Draw figures of the scenario whose measures and tables a folder holds, into the folder `out`.

    Raises `UserError` if they are not there, or cannot be read.
    """
    mpl.use("Agg")
    tables = ScenarioTables(scenario)
    for name in names:
        save(*draw(name, tables), out / name)


def save(figure: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Write a figure as `stem`.png, .svg and .pdf, and the numbers that it shows as `stem`.csv."""
    with styled():
        # One layout serves all formats; an engine, even one that does nothing, would have each of them drawn twice.
        if figure.axes and (engine := figure.get_layout_engine()):
            engine.execute(figure)
        mpl.rcParams["figure.constrained_layout.use"] = False
        figure.set_layout_engine(None)
        for suffix in FORMATS:
            with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, metadata=UNDATED.get(suffix))
        write_csv(data, stem.with_name(f"{stem.name}.csv"))
        plt.close(figure)


def draw(name: str, tables: ScenarioTables) -> tuple[Figure, pd.DataFrame]:
    """Draw a figure of a scenario; with the table of the numbers that it shows.

    Lines above it state runs without numbers, several machines or versions, synthetic runs, and runs whose numbers are
    in doubt; with synthetic runs the table has a column `synthetic`. Without anything to show the figure says why, and
    so does the table.
    """
    entry = catalog()[name]
    with styled():
        try:
            if not (tables.measures["outcome"] == "completed").any():
                raise NothingToShow("No run completed")
            figure, data = entry.draw(tables)
            is_synthetic = synthetic(tables)
            data = data.assign(synthetic=is_synthetic) if is_synthetic else data
        except NothingToShow as nothing:
            why = str(nothing)
            figure, data = plt.figure(figsize=(WIDTH_IN, 1.2)), pd.DataFrame({"nothing_to_show": [why]})
            words = textwrap.fill(f"{why[0].upper()}{why[1:]}", 70)
            figure.text(0.5, 0.5, words, ha="center", va="center", fontsize="large")
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
    drawn = [getattr(each, "errorbar", each) for axes in figure.axes for each in axes.containers]
    whiskers = any(isinstance(each, ErrorbarContainer) for each in drawn)
    return [f"Mean of {n} repeats{', 95% CI' if whiskers else ''}"]
