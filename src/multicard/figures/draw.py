"""Draw figures of the catalog, and write them to files."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from multicard.answers.notes import notes, synthetic
from multicard.core.files import atomic_write
from multicard.figures.catalog import load_drawing
from multicard.figures.style import WIDTH_IN, NothingToShow, note_above, styled
from multicard.results.results import Results
from multicard.results.tables import write_csv

FORMATS = ("png", "svg", "pdf")
# Dates are left out, so that the same data give the same file.
METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw_scenario(names: Iterable[str], scenario: Path, out: Path) -> None:
    """Draw figures of a scenario into the folder `out`.

    `names`: keys of `FIGURES`; `scenario`: folder with the measures and tables of the scenario. Raises `UserError` if a
    table is missing or cannot be read.
    """
    mpl.use("Agg")
    results = Results.read_scenario(scenario)
    for name in names:
        save(*draw(name, results), out / name)


def save(figure: Figure, data: pd.DataFrame, stem: Path) -> None:
    """Write a figure as `stem`.png, .svg and .pdf, and the numbers that it shows as `stem`.csv."""
    with styled():
        # The layout is computed once for all formats. With a layout engine, even one that does nothing, Matplotlib
        # would draw the figure twice for each format.
        engine = figure.get_layout_engine()
        if figure.axes and engine:
            engine.execute(figure)
        mpl.rcParams["figure.constrained_layout.use"] = False
        figure.set_layout_engine(None)
        for suffix in FORMATS:
            with atomic_write(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, metadata=METADATA.get(suffix))
        write_csv(data, stem.with_name(f"{stem.name}.csv"))
        plt.close(figure)


def draw(name: str, results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the figure `name` of a scenario, and return it with the table of the numbers that it shows.

    Notes above the figure state runs without numbers, several machines or versions, synthetic timings, and runs whose
    numbers are in doubt. If timings are synthetic, the table has a column `synthetic`: "all" or "some". If there is
    nothing to show, the figure states why, and so does the table, in its only column `nothing_to_show`.
    """
    drawing = load_drawing(name)
    with styled():
        try:
            if results.completed().frame().empty:
                raise NothingToShow("No run completed")
            figure, data = drawing.draw(results)
            is_synthetic = synthetic(results)
            if is_synthetic:
                data = data.assign(synthetic=is_synthetic)
        except NothingToShow as nothing:
            figure, data = _empty(str(nothing))
        note_above(figure, [*notes(results, drawing.profiled), *_repeats(figure, data)])
    return figure, data


def _empty(reason: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure without panels that states the reason, and a table with the reason."""
    figure = plt.figure(figsize=(WIDTH_IN, 1.2))
    sentence = textwrap.fill(f"{reason[0].upper()}{reason[1:]}", 70)
    figure.text(0.5, 0.5, sentence, ha="center", va="center", fontsize="large")
    return figure, pd.DataFrame({"nothing_to_show": [reason]})


def _repeats(figure: Figure, data: pd.DataFrame) -> list[str]:
    """Return a note on the number of repeats of each mean, and on the whiskers; empty if `data` states no repeats."""
    counts = data["repeats"][data["repeats"] > 0] if "repeats" in data else pd.Series(dtype=int)
    if counts.empty:
        return []
    fewest, most = int(counts.min()), int(counts.max())
    if most == 1:
        return ["n=1: a single repeat of each, so no intervals"]
    n = f"n={fewest}" if fewest == most else f"n={fewest} to {most}"
    interval = ", 95% CI" if _has_whiskers(figure) else ""
    return [f"Mean of {n} repeats{interval}"]


def _has_whiskers(figure: Figure) -> bool:
    """True if a panel has marks or bars that were drawn with whiskers."""
    containers = [container for axes in figure.axes for container in axes.containers]
    # Bars have their whiskers as an attribute; marks with whiskers are an `ErrorbarContainer` themselves.
    return any(isinstance(getattr(drawn, "errorbar", drawn), ErrorbarContainer) for drawn in containers)
