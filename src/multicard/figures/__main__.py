"""Print the page about figures: `python -m multicard.figures`."""

import re
import textwrap
from pathlib import Path

from multicard.figures.catalog import Entry, catalog

PAGE = Path(__file__).parent / "page.md"
WIDTH = 120


def page() -> str:
    """The page: its hand-written parts, and a section per figure."""
    return PAGE.read_text(encoding="utf-8").replace("{figures}\n", "\n".join(map(_section, catalog().values())))


def _section(entry: Entry) -> str:
    heading = f"**{entry.question}**"
    heading += f" Answers {entry.answers}." if entry.answers else ""
    needs = re.sub(r"(vary[.]\w+|\w+$)", r"`\1`", entry.needs)
    heading += f" Needs {needs}." if needs else ""
    filled = (textwrap.fill(text, WIDTH, break_on_hyphens=False) for text in (heading, entry.caption))
    return "\n\n".join((f"### `{entry.name}`", *filled)) + "\n"


if __name__ == "__main__":
    print(page(), end="")
