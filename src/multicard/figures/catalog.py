"""The figures by name, and how they become files."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.figures import breakdown, precision, scaling, techniques, text_datasets
from multicard.figures.series import not_shown
from multicard.figures.style import WIDTH_IN, styled
from multicard.files import whole

Drawing = Callable[[pd.DataFrame], tuple[Figure, pd.DataFrame]]

FIGURES: dict[str, Drawing] = {
    "iteration_time": scaling.iteration_time,
    "speedup": scaling.speedup,
    "phases": breakdown.phases,
    "precision": precision.precision,
    "techniques": techniques.techniques,
    "text_datasets": text_datasets.text_datasets,
}

PICTURES = ("png", "svg", "pdf")


def draw(name: str, measures: pd.DataFrame, stem: Path) -> None:
    """Draw one figure of a scenario's measures as `stem`.png, .svg and .pdf, and what it shows as `stem`.csv.

    Runs that did not complete are counted over the figure. When none did, the figure says only that.
    """
    mpl.use("Agg")
    with styled():
        if (measures["outcome"] == "completed").any():
            figure, data = FIGURES[name](measures)
        else:
            figure, data = plt.figure(figsize=(WIDTH_IN, 1.2)), measures
            figure.text(0.5, 0.6, "No run completed", ha="center", va="center", fontsize="large")
        note = not_shown(measures)
        if note:
            figure.suptitle(note, fontsize="small", x=0.01, ha="left")
        for suffix in PICTURES:
            with whole(stem.with_name(f"{stem.name}.{suffix}")) as temporary:
                figure.savefig(temporary, metadata=_undated(suffix))
        with whole(stem.with_name(f"{stem.name}.csv")) as temporary:
            data.to_csv(temporary, index=False)
        plt.close(figure)


def _undated(suffix: str) -> dict[str, None]:
    """Metadata without a date, so that the same data give the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
