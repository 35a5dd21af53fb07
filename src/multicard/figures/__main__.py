"""Print the page about figures: `python -m multicard.figures > docs/figures.md`."""

import re
import textwrap
from pathlib import Path

from multicard.config.figures import FIGURES, FigureEntry
from multicard.figures.catalog import load_drawing

PAGE = Path(__file__).parent / "page.md"
WIDTH = 120  # characters of a line of the page


def page() -> str:
    """Return the page in Markdown: its hand-written parts, and a section for each figure of the catalog."""
    sections = "\n".join(map(_section, FIGURES.values()))
    return PAGE.read_text(encoding="utf-8").replace("{figures}\n", sections)


def _section(entry: FigureEntry) -> str:
    """Return the section of a figure: its question, the paper's figure, its requirements and its caption."""
    drawing = load_drawing(entry.name)
    heading = f"**{drawing.question}**"
    if drawing.paper_figure:
        heading += f" Answers {drawing.paper_figure}."
    if entry.needs:
        names = "|".join((r"vary[.]\w+", *entry.workloads))
        needs = re.sub(names, r"`\g<0>`", entry.needs)
        heading += f" Needs {needs}."
    paragraphs = [textwrap.fill(text, WIDTH, break_on_hyphens=False) for text in (heading, drawing.caption)]
    return "\n\n".join((f"### `{entry.name}`", *paragraphs)) + "\n"


if __name__ == "__main__":
    print(page(), end="")
