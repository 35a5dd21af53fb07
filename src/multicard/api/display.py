"""Texts, tables and figures as notebooks show them."""

from html import escape

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.analysis.answer import Answer
from multicard.core.text import printable


class Markdown(str):
    """Text in Markdown, which notebooks show formatted."""

    def _repr_markdown_(self) -> str:
        return str(self)


class NotebookAnswer(Answer):
    """An answer, which notebooks show with its numbers below the sentence."""

    @classmethod
    def of(cls, answer: Answer) -> "NotebookAnswer":
        """Return an answer as notebooks show it."""
        return cls(answer.question, answer.sentence, answer.rows, answer.caveats, answer.figure)

    def _repr_html_(self) -> str:
        return titled(str(self), self.table())


def titled(title: str, table: pd.DataFrame) -> str:
    """A table below its title, as HTML; text from files is escaped."""
    cells = table.map(lambda cell: printable(cell) if isinstance(cell, str) else cell)
    with pd.option_context("display.max_colwidth", None):
        return f"<strong>{escape(printable(title))}</strong>{cells.to_html(index=False, na_rep='', justify='left')}"


def unmanaged(figure: Figure) -> Figure:
    """The figure, no longer known to pyplot: a notebook would otherwise show it twice, and pyplot keep it for ever."""
    plt.close(figure)
    return figure
