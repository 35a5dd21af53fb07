"""Texts, tables and figures in the forms that notebooks show."""

from html import escape

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from multicard.answers.answer import Answer
from multicard.core.text import printable


class Markdown(str):
    """Text in Markdown, which notebooks show formatted."""

    def _repr_markdown_(self) -> str:
        return str(self)


class NotebookAnswer(Answer):
    """An answer that notebooks show as its sentence, with its numbers in a table below."""

    @classmethod
    def of(cls, answer: Answer) -> "NotebookAnswer":
        """Return the same answer as a `NotebookAnswer`."""
        return cls(answer.question, answer.sentence, answer.rows, answer.caveats, answer.figure)

    def _repr_html_(self) -> str:
        return titled(str(self), self.table())


def titled(title: str, table: pd.DataFrame) -> str:
    """Return HTML with a title and a table below it. Text is escaped, because it may come from files."""
    cells = table.map(lambda cell: printable(cell) if isinstance(cell, str) else cell)
    with pd.option_context("display.max_colwidth", None):
        return f"<strong>{escape(printable(title))}</strong>{cells.to_html(index=False, na_rep='', justify='left')}"


def unmanaged(figure: Figure) -> Figure:
    """Close a figure in pyplot and return it. Else a notebook would show it twice, and pyplot would never free it."""
    plt.close(figure)
    return figure
