"""The page for an application for computing time, and its files: Markdown, and an SVG of the figure."""

import io
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.templates import markdown_template
from multicard.figures.points import Quantity, Series, draw_series
from multicard.figures.style import styled

FIGURE_IN = (2.4, 2.3)  # width and height of the figure in inches


@dataclass(frozen=True)
class SectionTable:
    """A table of text."""

    headings: list[str]
    rows: list[list[str]]
    asked: int | None = None  # index of the row that is applied for; None if the table has no such row


@dataclass(frozen=True)
class Section:
    """A part of the page. Below its title it has sentences, labelled facts, a table and the figure, in this order."""

    title: str
    sentences: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    table: SectionTable | None = None
    has_figure: bool = False


@dataclass(frozen=True)
class Proposal:
    """The page. Made by `propose.propose`."""

    title: str
    request: str  # the sentence that says what is applied for
    reason: str  # why this number of devices
    sections: list[Section]
    caveats: list[str]  # sentences about what could change the answer
    # The points of the figure: a row for each kind of scaling (`series`) and number of `devices`, with `repeats`,
    # `speedup`, `speedup_low`, `speedup_high` and `device`.
    speedups: pd.DataFrame

    @property
    def has_figure(self) -> bool:
        """True if there are several numbers of devices to draw."""
        return self.speedups["devices"].nunique() > 1


def check_markdown(out: Path) -> None:
    """Raise `UserError` if the name of a file does not end in .md; the message says how to convert the page."""
    if out.suffix != ".md":
        markdown, converted = out.with_suffix(".md"), out.with_suffix(out.suffix or ".html")
        convert = shlex.join(["pandoc", "--standalone", str(markdown), "-o", str(converted)])
        raise UserError(f"--proposal: found {str(out)!r}, expected a name that ends in .md; to convert that: {convert}")


def figure_file(out: Path) -> Path:
    """Return the file of the figure of a page; `out`: the file of the page."""
    return out.with_name(f"{out.stem}-scaling.svg")


def write_proposal(proposal: Proposal, out: Path) -> list[Path]:
    """Write the page as Markdown, and its figure as SVG in the same folder; return the files.

    Raises `UserError` if the name does not end in .md.
    """
    check_markdown(out)
    figure = figure_file(out) if proposal.has_figure else None
    template = markdown_template(Path(__file__).with_name("proposal.md.j2"))
    text = template.render(proposal=proposal, picture=figure and figure.name)
    if figure is not None:
        with atomic_write(figure) as temporary:
            temporary.write_bytes(_scaling_figure(proposal.speedups))
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [out] if figure is None else [out, figure]


def _scaling_figure(speedups: pd.DataFrame) -> bytes:
    """Return an SVG picture of the speed-up against the number of devices, with a line for ideal speed-up."""
    mpl.use("Agg")
    device_counts = sorted(speedups["devices"].unique())
    ideal = dict(zip(device_counts, device_counts, strict=True))
    with styled():
        figure, axes = plt.subplots(figsize=FIGURE_IN)
        draw_series(axes, Series(speedups), Quantity("speedup", title="", label="Speed-up over one", ideal=ideal))
        axes.legend(fontsize="x-small", loc="upper left")
        svg = io.BytesIO()
        # The date is left out, so that the same results give the same bytes.
        figure.savefig(svg, format="svg", metadata={"Date": None})
        plt.close(figure)
    return svg.getvalue()
