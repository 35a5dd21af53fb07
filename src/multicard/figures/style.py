"""One look for all figures: sizes for print, colours that stay apart in grey, marks that need no colour."""

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH_IN = 7.0  # text width of a journal page

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")

PHASE_COLOURS = {
    "data": "#E69F00",
    "transfer": "#F0E442",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "checkpoint": "#CC79A7",
    "other": "#D9D9D9",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the house style."""
    parameters = {
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.wspace": 0.06,
        "font.family": "DejaVu Sans",
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
        # The same data give the same file, and text in an SVG stays text.
        "svg.hashsalt": "multicard",
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
    }
    with sns.axes_style("whitegrid"), sns.plotting_context("paper"), mpl.rc_context(parameters):
        yield


def colours(count: int) -> list[tuple[float, float, float]]:
    """Colours for series, safe for colour-blind readers."""
    return sns.color_palette("colorblind", count)


def legend_below(figure: Figure, axes: Axes, title: str | None = None) -> None:
    """Put the legend of `axes` under the figure, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            title=title,
            loc="outside lower center",
            ncols=min(4, len(labels)),
            handlelength=3,
        )
