"""Summaries, texts and figures as notebooks show them."""

from collections.abc import Mapping
from html import escape

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.core.text import printable


class Markdown(str):
    """Text in Markdown, which notebooks show formatted."""

    def _repr_markdown_(self) -> str:
        return str(self)


def summary_html(title: str, facts: Mapping[str, str], table: pd.DataFrame) -> str:
    """A title, some facts, and a table, as HTML; text from files is escaped."""
    lines = [f"<dt>{escape(name)}</dt><dd>{escape(printable(text))}</dd>" for name, text in facts.items()]
    facts_html = f"<dl>{''.join(lines)}</dl>" if lines else ""
    cells = table.map(lambda cell: printable(cell) if isinstance(cell, str) else cell)
    with pd.option_context("display.max_colwidth", None):
        body = cells.to_html(index=False, escape=True, na_rep="", border=0, justify="left")
    return f"<div><strong>{escape(printable(title))}</strong>{facts_html}{body}</div>"


def unmanaged(figure: Figure) -> Figure:
    """The figure, no longer known to pyplot: a notebook would otherwise show it twice, and pyplot keep it for ever."""
    plt.close(figure)
    return figure
