"""Print the page about figures: `python -m multicard.figures`."""

import textwrap
from pathlib import Path

from multicard.experiment.figures import FIGURES, Figure

PAGE = Path(__file__).parent / "catalog" / "page.md"
WIDTH = 120


def page() -> str:
    """The page: its hand-written parts, and a section per figure."""
    return PAGE.read_text(encoding="utf-8").replace("{figures}\n", "\n".join(map(_section, FIGURES.values())))


def _section(figure: Figure) -> str:
    needs = ", ".join(f"`{need}`" if need.startswith("vary") else _workload(need) for need in figure.needs)
    heading = f"**{figure.question}**"
    heading += f" Answers {figure.answers}." if figure.answers else ""
    heading += f" Needs {needs}." if needs else ""
    paragraphs = (heading, figure.caption, f"*Limits:* {figure.limits}")
    filled = (textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) for text in paragraphs)
    return "\n\n".join((f"### `{figure.name}`", *filled)) + "\n"


def _workload(need: str) -> str:
    what, name = need.split(" ")
    return f"{what} `{name}`"


if __name__ == "__main__":
    print(page(), end="")
