"""The style that all figures share: sizes for print, colours, hatches, notes and legends."""

import math
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from multicard.core.text import for_figure

# Width of all figures in inches: that of the text on a journal's page.
WIDTH_IN = 7.0

# The first of these fonts that is installed is used.
FONTS = ("Source Sans 3", "Source Sans Pro", "Inter", "Liberation Sans", "Arial", "Helvetica")

Colour = str | tuple[float, float, float]
# Colours that colour-blind readers can distinguish. They are seaborn's palette "colorblind", copied because importing
# seaborn takes a second.
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")


class Fill(NamedTuple):
    """Colour and hatch of a part of a bar."""

    colour: Colour
    hatch: str


# Fill of each part of a bar. The parts follow each other in the bar in this order.
Fills = dict[str, Fill]


@contextmanager
def styled() -> Iterator[None]:
    """Have Matplotlib draw in the style of all figures inside the `with` block."""
    with mpl.style.context(["seaborn-v0_8-whitegrid", "seaborn-v0_8-paper", _parameters()]):
        yield


def _parameters() -> dict[str, Any]:
    """Return Matplotlib's rcParams that are set in addition to the seaborn styles, by Matplotlib's names."""
    installed = {font.name for font in fontManager.ttflist}
    # Only one installed font is named, because Matplotlib would look for a missing font again for every text. Glyphs
    # that the font lacks come from DejaVu Sans, which is part of Matplotlib.
    fonts = [*[name for name in FONTS if name in installed][:1], "DejaVu Sans"]
    return {
        "font.family": fonts,
        "font.size": 9.6,
        "axes.labelsize": 9.6,
        "legend.title_fontsize": 9.6,
        "xtick.labelsize": 8.8,
        "ytick.labelsize": 8.8,
        "legend.fontsize": 8.8,
        "lines.linewidth": 1.2,
        "lines.markersize": 4.8,
        "lines.markeredgewidth": 1.0,
        "patch.linewidth": 0.8,
        "patch.edgecolor": "white",
        "patch.force_edgecolor": True,
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.wspace": 0.06,
        "axes.titlelocation": "left",
        # A fixed height of titles. Otherwise Matplotlib looks, whenever it draws, for a height at which ticks or a
        # factor (1e6) are not in the way, which takes a tenth of the time. No figure has these at the top of its axes.
        "axes.titley": 1.0,
        "axes.formatter.limits": (-9, 9),
        "axes.formatter.useoffset": False,
        "axes.titlesize": "medium",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
        # With a fixed salt equal data give equal SVG files. With `none` text in an SVG stays text.
        "svg.hashsalt": "multicard",
        "svg.fonttype": "none",
        "pdf.fonttype": 42,
    }


class NothingToShow(Exception):
    """Raised if a figure has nothing to show; the message is the reason, which the figure then shows."""


def colours(count: int) -> list[str]:
    """Return colours for series that have no order. There are ten; then they repeat."""
    return [COLOURS[n % len(COLOURS)] for n in range(count)]


def ordered_colours(count: int) -> list[str]:
    """Return colours for series that have an order, from light to dark."""
    viridis = mpl.colormaps["viridis_r"]
    return [mpl.colors.to_hex(viridis((n + 1) / (count + 1))) for n in range(count)]


def filled(text: str, width: int) -> str:
    r"""Break text into at most three lines of `width` characters, and escape it so that no dollar starts a formula.

    >>> filled("bf16, batch 64", 9)
    'bf16,\nbatch 64'
    """
    return "\n".join(textwrap.wrap(for_figure(text, len(text)), width, max_lines=3, placeholder="…"))


def note_inside(axes: Axes, reason: str) -> None:
    """Write into an empty panel why it is empty, and remove its ticks."""
    axes.text(
        0.5,
        0.5,
        reason,
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize="small",
        color="0.35",
        wrap=True,
    )
    axes.set(xticks=[], yticks=[])


def note_above(figure: Figure, notes: Iterable[str]) -> None:
    """Put notes above a figure, each on one or more lines. The figure grows, so that its panels keep their height."""
    characters, line_height_in = 125, 0.14
    lines = [line for note in notes for line in textwrap.wrap(for_figure(note, len(note)), characters)]
    if lines:
        figure.suptitle("\n".join(lines), fontsize="small", x=0.01, ha="left")
        figure.set_figheight(figure.get_figheight() + line_height_in * len(lines))


def legend_below(figure: Figure, *panels: Axes) -> None:
    """Put one legend of all panels below the figure, where it covers no data.

    Entries with the same label are shown once. Series (bars, lines with whiskers) come before other entries.
    """
    handles = _legend_handles(panels)
    if not handles:
        return
    many = len(handles) > 12
    size = 0.76 if many else 1.0
    longest_label = max(map(len, handles))
    column_width_in = size * (0.65 + 0.07 * longest_label)
    most_columns = max(1, min(6, int(WIDTH_IN / column_width_in)))
    row_count = math.ceil(len(handles) / most_columns)
    # Figures have space for a legend of two rows. Further rows make the figure higher, so that panels keep their
    # height.
    figure.set_figheight(figure.get_figheight() + size * 0.17 * max(0, row_count - 2))
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower center",
        ncols=math.ceil(len(handles) / row_count),
        handlelength=3,
        fontsize="x-small" if many else None,
    )


def remove_legend(axes: Axes) -> None:
    """Remove the legend that seaborn put into a panel, because figures have one legend below all panels."""
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()


def _legend_handles(panels: Iterable[Axes]) -> dict[str, Artist]:
    """Return the first handle of each label in the panels; series (bars, lines with whiskers) come before others."""
    entries = [entry for axes in panels for entry in zip(*axes.get_legend_handles_labels(), strict=True)]
    series_first = sorted(entries, key=lambda entry: not isinstance(entry[0], Container))
    handles: dict[str, Artist] = {}
    for handle, label in series_first:
        handles.setdefault(label, handle)
    return handles
