"""The page for an application for computing time, and its files: Markdown, with the figure beside it."""

import io
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.templates import markdown_template
from multicard.figures.points import Quantity, Series, draw_series
from multicard.figures.style import styled

FIGURE_IN = (2.4, 2.3)


class Table(NamedTuple):
    """Headings, rows of text, and the row that is applied for, if it is one of them."""

    headings: list[str]
    rows: list[list[str]]
    asked: int | None = None


@dataclass(frozen=True)
class Block:
    """A part of the page: sentences, then facts by name, then a table; `figure`: the figure stands here."""

    title: str
    sentences: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    table: Table | None = None
    figure: bool = False


@dataclass(frozen=True)
class Proposal:
    """The page: what is requested, why so many devices, the evidence, and what could change the answer.

    `speedups` has a row for each point of the figure.
    """

    title: str
    request: str
    reason: str
    blocks: list[Block]
    caveats: list[str]
    speedups: pd.DataFrame


def check_markdown(out: Path) -> None:
    """Refuse a file that is not Markdown, and say how to convert the page."""
    if out.suffix != ".md":
        markdown, converted = out.with_suffix(".md"), out.with_suffix(out.suffix or ".html")
        convert = shlex.join(["pandoc", "--standalone", str(markdown), "-o", str(converted)])
        raise UserError(f"--proposal: found {str(out)!r}, expected a name that ends in .md; to convert that: {convert}")


def write_proposal(proposal: Proposal, out: Path) -> list[Path]:
    """Write the page as Markdown, and its figure beside it; return the files that were written.

    Raises `UserError` if the name does not end in .md.
    """
    check_markdown(out)
    template = markdown_template(Path(__file__).with_name("proposal.md.j2"))
    figure = out.with_name(f"{out.stem}-scaling.svg") if proposal.speedups["devices"].nunique() > 1 else None
    text = template.render(page=proposal, picture=figure and figure.name)
    if figure:
        with atomic_write(figure) as temporary:
            temporary.write_bytes(_figure(proposal))
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [out, figure] if figure else [out]


def _figure(proposal: Proposal) -> bytes:
    """Draw the speed-up over devices with the ideal line, as SVG."""
    mpl.use("Agg")
    data = proposal.speedups
    counts = sorted(data["devices"].unique())
    with styled():
        figure, axes = plt.subplots(figsize=FIGURE_IN)
        ideal = {count: count for count in counts}
        draw_series(axes, Series(data), Quantity("speedup", "", "Speed-up over one", ideal=ideal))
        axes.legend(fontsize="x-small", loc="upper left")
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
        plt.close(figure)
    return content.getvalue()
