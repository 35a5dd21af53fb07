"""Draw figures of the catalog, and write them to files."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.answers.notes import synthetic
from multicard.config.figures import WidthName
from multicard.core.files import atomic_write
from multicard.core.text import for_figure
from multicard.figures.caption import caption
from multicard.figures.catalog import load_drawing
from multicard.figures.style import CHARACTER_IN, PAGE, NothingToShow, mark_synthetic, styled, width_in, wrap_titles
from multicard.results.results import Results
from multicard.results.tables import write_csv

FORMATS = ("png", "svg", "pdf")
# Dates are left out, so that the same data give the same file.
METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def draw_scenario(names: Iterable[str], scenario: Path, out: Path, width: WidthName = PAGE) -> None:
    """Draw figures of a scenario into the folder `out`, and write the caption of each beside it.

    `names`: keys of `FIGURES`; `scenario`: folder with the measures and tables of the scenario; `width`: key of
    `WIDTHS_IN`. Raises `UserError` if a table is missing or cannot be read.
    """
    mpl.use("Agg")
    results = Results.read_scenario(scenario)
    for name in names:
        figure, data = draw(name, results, width)
        save(figure, data, out / name)
        with atomic_write(out / f"{name}.txt") as temporary:
            temporary.write_text(f"{caption(name, results, data)}\n", encoding="utf-8")


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


def draw(name: str, results: Results, width: WidthName = PAGE) -> tuple[Figure, pd.DataFrame]:
    """Draw the figure `name` of a scenario, and return it with the table of the numbers that it shows.

    Runs without numbers and doubts are in its `caption`, not in the picture. If timings are synthetic, the picture says
    so, and the table has a column `synthetic`: "all" or "some". If there is nothing to show, the figure states why, and
    so does the table, in its only column `nothing_to_show`. `width`: key of `WIDTHS_IN`.
    """
    drawing = load_drawing(name)
    with styled(width):
        try:
            if results.completed().frame().empty:
                raise NothingToShow("No run completed")
            figure, data = drawing.draw(results)
            wrap_titles(figure)
            is_synthetic = synthetic(results)
            if is_synthetic:
                data = data.assign(synthetic=is_synthetic)
                mark_synthetic(figure, is_synthetic)
        except NothingToShow as nothing:
            figure, data = _empty(str(nothing))
    return figure, data


def _empty(reason: str) -> tuple[Figure, pd.DataFrame]:
    """Return a figure without panels that states the reason, and a table with the reason."""
    figure = plt.figure(figsize=(width_in(), 1.2))
    characters = int(width_in() / CHARACTER_IN) - 2
    sentence = textwrap.fill(for_figure(f"{reason[0].upper()}{reason[1:]}", len(reason)), characters)
    figure.text(0.5, 0.5, sentence, ha="center", va="center")
    return figure, pd.DataFrame({"nothing_to_show": [reason]})
