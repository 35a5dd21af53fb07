"""The style that all figures share: widths and sizes for print, colours, hatches, and legends."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from multicard.config.figures import WidthName
from multicard.core.text import for_figure

# Width of a figure in inches, and the default.
WIDTHS_IN: dict[WidthName, float] = {"column": 3.3, "page": 7.0}
PAGE: WidthName = "page"

# Sizes of text in points, the same for both widths. Journals want at least 7 points in print.
LABEL_POINTS = 8.5
TICK_POINTS = 8.0
SMALLEST_POINTS = 7.0
# The background of a number in a panel, so that neither dots nor lines of the grid cross it.
NUMBER_BOX = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
# Inches that a character of `TICK_POINTS` takes in the mean, and a line.
CHARACTER_IN = 0.07
LINE_IN = 0.125

# The first of these fonts that is installed is used.
FONTS = ("Source Sans 3", "Source Sans Pro", "Inter", "Liberation Sans", "Arial", "Helvetica")

Colour = str | tuple[float, float, float]
# Colours that colour-blind readers can distinguish. They are seaborn's palette "colorblind", copied because importing
# seaborn takes a second.
COLOURS = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#cc78bc", "#ca9161", "#fbafe4", "#949494", "#ece133", "#56b4e9")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---")


@contextmanager
def styled(width: WidthName = PAGE) -> Iterator[None]:
    """Have Matplotlib draw in the style of all figures, and in this width, inside the `with` block."""
    size = {"figure.figsize": (WIDTHS_IN[width], 3.0)}
    with mpl.style.context(["seaborn-v0_8-whitegrid", "seaborn-v0_8-paper", _parameters() | size]):
        yield


def width_in() -> float:
    """Return the width of figures in inches, which `styled` has set."""
    width: float = mpl.rcParams["figure.figsize"][0]
    return width


def is_column() -> bool:
    """True if figures are as narrow as a column, so that nothing has space beside a panel."""
    return width_in() < WIDTHS_IN["page"]


def one_panel(height_in: float) -> tuple[Figure, Axes]:
    """Return a figure with one panel. `height_in`: height of the figure in inches."""
    return plt.subplots(figsize=(width_in(), height_in))


def side_by_side(
    height_in: float, count: int = 2, *, share_rows: bool = False, width_ratios: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels beside each other; in a column below each other.

    Parameters
    ----------
    height_in
        Height of a panel in inches, with its axis.
    count
        Number of panels.
    share_rows
        True if the panels show the same rows. Beside each other only the first one then names them.
    width_ratios
        Widths of panels beside each other, relative to each other.
    """
    if is_column():
        figure, grid = plt.subplots(count, 1, figsize=(width_in(), count * height_in), squeeze=False)
    else:
        figure, grid = plt.subplots(
            1, count, figsize=(width_in(), height_in), squeeze=False, sharey=share_rows, width_ratios=width_ratios
        )
    return figure, list(grid.flat)


def _parameters() -> dict[str, Any]:
    """Return Matplotlib's rcParams that are set in addition to the seaborn styles, by Matplotlib's names."""
    installed = {font.name for font in fontManager.ttflist}
    # Only one installed font is named, because Matplotlib would look for a missing font again for every text. Glyphs
    # that the font lacks come from DejaVu Sans, which is part of Matplotlib.
    fonts = [*[name for name in FONTS if name in installed][:1], "DejaVu Sans"]
    return {
        "font.family": fonts,
        "font.size": LABEL_POINTS,
        "axes.labelsize": LABEL_POINTS,
        "legend.title_fontsize": TICK_POINTS,
        "xtick.labelsize": TICK_POINTS,
        "ytick.labelsize": TICK_POINTS,
        "legend.fontsize": TICK_POINTS,
        "lines.linewidth": 1.2,
        "lines.markersize": 4.8,
        "lines.markeredgewidth": 1.0,
        "patch.linewidth": 0.8,
        "patch.edgecolor": "white",
        "patch.force_edgecolor": True,
        "figure.dpi": 100,
        "savefig.dpi": 300,
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
        fontsize=SMALLEST_POINTS,
        color="0.35",
        wrap=True,
    )
    axes.set(xticks=[], yticks=[])


def mark_synthetic(figure: Figure, which: str) -> None:
    """Write above a figure that its numbers are invented, because a picture may be shown without its caption.

    `which`: "all" or "some" of the runs. The figure grows, so that its panels keep their height.
    """
    words = "synthetic data" if which == "all" else "some data are synthetic"
    figure.suptitle(words, fontsize=SMALLEST_POINTS, fontstyle="italic", x=0.01, ha="left")
    figure.set_figheight(figure.get_figheight() + LINE_IN)


def wrap_titles(figure: Figure) -> None:
    """Break long titles of panels in a column into lines; the figure grows by them. Wider figures stay as they are."""
    if not is_column():
        return
    characters = 30
    for axes in figure.axes:
        title = filled_label(axes.get_title(loc="left"), characters)
        axes.set_title(title)
        figure.set_figheight(figure.get_figheight() + LINE_IN * title.count("\n"))


def legend_below(figure: Figure, *panels: Axes) -> None:
    """Put one legend of all panels below the figure, where it covers no data.

    Entries with the same label are shown once. Series (bars, lines with whiskers) come before other entries.
    """
    handles = _legend_handles(panels)
    if not handles:
        return
    many = len(handles) > 12
    points = SMALLEST_POINTS if many else TICK_POINTS
    size = points / TICK_POINTS
    handle_in = 0.5
    widest_in = width_in() - 0.1
    characters = int((widest_in / size - handle_in) / CHARACTER_IN)
    labels = [filled_label(label, characters) for label in handles]
    longest_line = max(len(line) for label in labels for line in label.split("\n"))
    column_width_in = size * (handle_in + CHARACTER_IN * longest_line)
    most_columns = max(1, min(6, int(widest_in / column_width_in)))
    row_count = math.ceil(len(handles) / most_columns)
    line_count = max(label.count("\n") for label in labels) + row_count
    # Figures have space for a legend of two rows. Further rows make the figure higher, so that panels keep their
    # height.
    figure.set_figheight(figure.get_figheight() + size * 0.165 * max(0, line_count - 2))
    figure.legend(
        list(handles.values()),
        labels,
        loc="outside lower center",
        ncols=math.ceil(len(handles) / row_count),
        handlelength=2.2,
        columnspacing=1.2,
        fontsize=points,
    )


def filled_label(text: str, width: int) -> str:
    """Break a label, in which dollars are escaped already, into lines of `width` characters."""
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False)) or text


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
