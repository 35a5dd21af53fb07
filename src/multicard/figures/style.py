"""One look for all figures: sizes for print, colours that stay apart in grey, marks that need no colour."""

import math
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import matplotlib as mpl
import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from multicard.core.text import for_figure

Colour = str | tuple[float, float, float]
Look = dict[str, tuple[Colour, str]]  # colour and hatch of each part of a bar

WIDTH_IN = 7.0  # text width of a journal page
MANY = 12  # entries of a legend, beyond which it is in small print
ROWS, ROW_IN = 2, 0.17  # of a legend: as many as figures have space for, and the height of another, in inches
FONTS = ("Source Sans 3", "Source Sans Pro", "Inter", "Liberation Sans", "Arial", "Helvetica")
NOTE_WIDTH, NOTE_IN = 125, 0.14  # characters of a line over a figure, and its height in inches

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")
# Safe for colour-blind readers: seaborn's palette "colorblind", which takes a second to import.
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9")
ERROR_BARS = {"capsize": 3, "elinewidth": 1, "ecolor": "0.1"}

# Of the parts of a step, and of a GPU's time.
PHASES: Look = {
    "data": ("#E69F00", ""),
    "transfer": ("#F0E442", "///"),
    "forward": ("#56B4E9", "..."),
    "backward": ("#0072B2", "\\\\\\"),
    "optimizer": ("#009E73", "xxx"),
    "evaluation": ("#B2DF8A", ""),
    "other": ("#D9D9D9", "///"),
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the house style."""
    installed = {font.name for font in fontManager.ttflist}
    parameters = {
        **dict.fromkeys(("font.size", "axes.labelsize", "legend.title_fontsize"), 9.6),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8.8),
        **{"lines.linewidth": 1.2, "lines.markersize": 4.8, "lines.markeredgewidth": 1.0, "patch.linewidth": 0.8},
        **{"patch.edgecolor": "white", "patch.force_edgecolor": True},
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
    with mpl.style.context(["seaborn-v0_8-whitegrid", "seaborn-v0_8-paper", parameters]):
        yield


class NothingToShow(Exception):
    """A figure has nothing to show; the message says why, to its reader."""


def colours(count: int) -> list[str]:
    """Colours for series; after ten they repeat."""
    return [COLOURS[n % len(COLOURS)] for n in range(count)]


def ordered_colours(count: int) -> list[str]:
    """Colours for series that have an order, from light to dark."""
    return [mpl.colors.to_hex(mpl.colormaps["viridis_r"]((n + 1) / (count + 1))) for n in range(count)]


def say(axes: Axes, why: str) -> None:
    """Say in an empty panel why it is empty."""
    axes.text(
        0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize="small", color="0.35", wrap=True
    )
    axes.set(xticks=[], yticks=[])


def filled(text: str, width: int) -> str:
    r"""Text in lines of at most `width` characters, three at most, as Matplotlib shows it literally.

    >>> filled("bf16, batch 64", 9)
    'bf16,\nbatch 64'
    """
    return "\n".join(textwrap.wrap(for_figure(text, len(text)), width, max_lines=3, placeholder="…"))


def note_above(figure: Figure, notes: Iterable[str]) -> None:
    """Put notes, a line or more each, above a figure, whose panels keep their height."""
    lines = [line for note in notes for line in textwrap.wrap(for_figure(note, len(note)), NOTE_WIDTH)]
    if lines:
        figure.suptitle("\n".join(lines), fontsize="small", x=0.01, ha="left")
        figure.set_figheight(figure.get_figheight() + NOTE_IN * len(lines))


def legend_below(figure: Figure, *axes: Axes) -> None:
    """Put one legend of `axes` under the figure, where it covers no data; series come before single lines."""
    found = [pair for each in axes for pair in zip(*each.get_legend_handles_labels(), strict=True)]
    found.sort(key=lambda pair: not isinstance(pair[0], Container))
    entries = {label: handle for handle, label in reversed(found)}  # of equal labels the first
    if not entries:
        return
    order = list(dict.fromkeys(label for _, label in found))
    size, print_size = (1.0, None) if len(order) <= MANY else (0.76, "x-small")
    column = size * (0.65 + 0.07 * max(map(len, order)))  # inches that a mark and the longest label take
    rows = math.ceil(len(order) / max(1, min(6, int(WIDTH_IN / column))))
    # Panels keep their height under a legend of many rows.
    figure.set_figheight(figure.get_figheight() + size * ROW_IN * max(0, rows - ROWS))
    figure.legend(
        [entries[label] for label in order],
        order,
        loc="outside lower center",
        ncols=math.ceil(len(order) / rows),
        handlelength=3,
        fontsize=print_size,
    )
