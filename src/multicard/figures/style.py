"""One look for all figures: sizes for print, colours that stay apart in grey, marks that need no colour."""

import math
import textwrap
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import matplotlib as mpl
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.legend_handler import HandlerTuple
from matplotlib.ticker import EngFormatter, NullFormatter

from multicard.core.text import for_figure

Colour = str | tuple[float, float, float]

WIDTH_IN = 7.0  # text width of a journal page

MANY = 12  # entries of a legend, beyond which it is in small print
ROWS, ROW_IN = 2, 0.17  # of a legend: as many as figures have space for, and the height of another, in inches

FONTS = ("Source Sans 3", "Source Sans Pro", "Inter", "Liberation Sans", "Arial", "Helvetica")

PER_IN = 16  # characters of small print in an inch
NOTE_WIDTH, NOTE_IN = 125, 0.14  # characters of a line over a figure, and its height in inches

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")

# How a mark is filled whose difference is none, or of one repeat; all others are full.
WEAK = {
    "none": {"fillstyle": "full", "markerfacecolor": "white"},
    "unknown": {"fillstyle": "bottom", "markerfacecoloralt": "white"},
}
WEAK_WORDS = {"none": "hollow: inconclusive", "unknown": "half-filled: one repeat, cannot tell"}

PHASE_COLOURS = {
    "data": "#E69F00",
    "transfer": "#F0E442",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "checkpoint": "#CC79A7",
    "evaluation": "#B2DF8A",
    "other": "#D9D9D9",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the house style."""
    installed = {font.name for font in fontManager.ttflist}
    parameters = {
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.wspace": 0.06,
        # Only fonts that are there: Matplotlib looks for every other at every text. Glyphs that the first lacks are
        # from the font that Matplotlib brings.
        "font.family": [*[name for name in FONTS if name in installed][:1], "DejaVu Sans"],
        "axes.titlelocation": "left",
        # A title at the top of its axes: to find out at every drawing that nothing is in its way takes a tenth of the
        # time. So no axis has ticks or a factor (1e6) up there.
        "axes.titley": 1.0,
        "axes.formatter.limits": (-9, 9),
        "axes.formatter.useoffset": False,
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


class NothingToShow(Exception):
    """A figure has nothing to show; the message says why, to its reader."""


def colours(count: int) -> list[tuple[float, float, float]]:
    """Colours for series, safe for colour-blind readers."""
    return sns.color_palette("colorblind", count)


def ordered_colours(count: int) -> list[tuple[float, float, float]]:
    """Colours for series that have an order, from light to dark."""
    return sns.color_palette("viridis_r", count)


def say(axes: Axes, why: str) -> None:
    """Say in an empty panel why it is empty."""
    axes.text(
        0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize="small", color="0.35", wrap=True
    )
    axes.set(xticks=[], yticks=[])


def explain_marks(axes: Axes, verdicts: Collection[str]) -> None:
    """Give those of the `WEAK` verdicts that occur an entry in the legend."""
    for weak, fill in WEAK.items():
        if weak in verdicts:
            axes.plot([], [], linestyle="none", marker="o", color="0.3", label=WEAK_WORDS[weak], **fill)


def bandwidth_axes(axes: Axes) -> None:
    """Bus bandwidth over the size of messages, both logarithmic."""
    axes.set(xscale="log", yscale="log", xlabel="Message size", ylabel="Bus bandwidth")
    for axis, unit in ((axes.xaxis, "B"), (axes.yaxis, "B/s")):
        axis.set_major_formatter(EngFormatter(unit))
        axis.set_minor_formatter(NullFormatter())


def characters_of(axes: Axes) -> int:
    """Characters of small print that are about as wide as a panel."""
    return max(12, int(axes.get_position().width * axes.figure.get_figwidth() * PER_IN))


def filled(text: str, width: int, most: int = 3) -> str:
    r"""Text in lines of at most `width` characters, and in at most so many lines, as Matplotlib shows it literally.

    >>> filled("bf16, batch 64", 9), filled("one two three", 5, most=2)
    ('bf16,\nbatch 64', 'one\ntwo…')
    """
    lines = textwrap.wrap(for_figure(text, len(text)), width, max_lines=most, placeholder="…")
    return "\n".join(lines)


def note_above(figure: Figure, notes: Iterable[str]) -> None:
    """Put notes, a line or more each, above a figure, whose panels keep their height."""
    lines = [line for note in notes for line in textwrap.wrap(for_figure(note, len(note)), NOTE_WIDTH)]
    if lines:
        figure.suptitle("\n".join(lines), fontsize="small", x=0.01, ha="left")
        figure.set_figheight(figure.get_figheight() + NOTE_IN * len(lines))


def lay_out(figure: Figure) -> None:
    """Place all panels, so that it is known where their points are."""
    engine = figure.get_layout_engine()
    if engine is None or not figure.axes:
        figure.draw_without_rendering()
    else:
        engine.execute(figure)


def legend_below(figure: Figure, *axes: Axes, place: str = "center") -> None:
    """Put one legend of `axes` under the figure, where it covers no data: at its `center`, or its `left` or `right`.

    What has the same label in several axes has one entry, with a mark of each kind. Series come before single lines.
    A legend at a side takes half the width.
    """
    found = [pair for each in axes for pair in zip(*each.get_legend_handles_labels(), strict=True)]
    entries: dict[str, list[Artist | Container]] = {}
    for handle, label in sorted(found, key=lambda pair: not isinstance(pair[0], Container)):
        marks = entries.setdefault(label, [])
        if not any(type(mark) is type(handle) for mark in marks):
            marks.append(handle)
    if not entries:
        return
    width = WIDTH_IN if place == "center" else WIDTH_IN / 2
    of_normal, print_size = (1.0, None) if len(entries) <= MANY else (0.76, "x-small")
    column = of_normal * (0.65 + 0.07 * max(map(len, entries)))  # inches that a mark and the longest label take
    most = max(1, min(6, int(width / column)))
    rows = math.ceil(len(entries) / most)
    # Panels keep their height under a legend of many rows.
    figure.set_figheight(figure.get_figheight() + of_normal * ROW_IN * max(0, rows - ROWS))
    figure.legend(
        [tuple(marks) if len(marks) > 1 else marks[0] for marks in entries.values()],
        entries,
        loc=f"outside lower {place}",
        ncols=math.ceil(len(entries) / rows),
        handlelength=3,
        fontsize=print_size,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.6)},
    )
