"""The page for an application for computing time, and its file: HTML that prints on one A4 page, Markdown or LaTeX."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.core.text import for_latex, for_markdown
from multicard.figures.points import Quantity, Series, draw_series
from multicard.figures.style import styled
from multicard.report.page import template_environment

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


class Format(NamedTuple):
    """How a format is written: its template, what its figure is, and how it shows text as it is."""

    template: str
    figure: str
    text: Callable[[str], str] | None


FORMATS = {
    ".html": Format("proposal.html.j2", "svg", None),
    ".md": Format("proposal.md.j2", "svg", for_markdown),
    ".tex": Format("proposal.tex.j2", "pdf", for_latex),
}


def check_format(out: Path) -> None:
    """Refuse a file of another format."""
    if out.suffix not in FORMATS:
        raise UserError(f"--proposal: found {str(out)!r}, expected a file whose name ends in {', '.join(FORMATS)}")


def write_proposal(proposal: Proposal, out: Path) -> list[Path]:
    """Write the page in the format that its name ends in, and the figure as a file of its own, which HTML embeds.

    Raises `UserError` if the format is unknown.
    """
    check_format(out)
    form = FORMATS[out.suffix]
    picture = _figure(proposal, form.figure) if proposal.speedups["devices"].nunique() > 1 else None
    beside = out.with_name(f"{out.stem}-scaling.{form.figure}") if picture and form.text else None
    named = beside.name if beside else picture and _data_uri(picture)
    templates = template_environment(autoescape=form.text is None)
    templates.filters["t"] = form.text or (lambda shown: shown)  # of formats other than HTML it escapes
    text = templates.get_template(form.template).render(page=proposal, picture=named)
    if beside:
        with atomic_write(beside) as temporary:
            temporary.write_bytes(picture)
    with atomic_write(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return [out, *([beside] if beside else [])]


def _figure(proposal: Proposal, kind: str) -> bytes:
    """Speed-up over devices with the ideal line."""
    mpl.use("Agg")
    data = proposal.speedups
    counts = sorted(data["devices"].unique())
    with styled():
        figure, axes = plt.subplots(figsize=FIGURE_IN)
        ideal = {count: count for count in counts}
        draw_series(axes, Series(data), Quantity("speedup", "", "Speed-up over one", ideal=ideal))
        axes.legend(fontsize="x-small", loc="upper left")
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind])
        plt.close(figure)
    return content.getvalue()


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
