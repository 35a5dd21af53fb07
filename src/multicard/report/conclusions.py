"""Conclusions of the experiment for the page: verdicts on the claims, and recommendations."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from multicard.report.wording import in_words

UNMEASURED = "not measured here"

# More parts than this under one heading are collapsed one by one, and beyond the second limit all together too.
OPEN_PARTS = 4
SEEN_PARTS = 8

SCROLL = '<div class="scroll" role="group" aria-label="Table" tabindex="0">'


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict, the facts that are `shown` with it, and `more` in a closed section."""

    says: str
    verdict: str
    shown: list[tuple[str, str]]
    more: list[tuple[str, str]]


def claims_of(table: pd.DataFrame) -> list[Claim]:
    """Give the claims of claims.csv, measured ones first; of the others all facts are in the closed section."""
    claims = []
    for _, row in table.iterrows():
        facts = [(name, row[name]) for name in table if name not in ("says", "verdict") and row[name]]
        at_once = ("finding", "conditions") if row["verdict"] != UNMEASURED else ()
        shown = [(in_words(name), value) for name, value in facts if name in at_once]
        more = [(in_words(name), value) for name, value in facts if name not in at_once]
        claims.append(Claim(row["says"], row["verdict"], shown, more))
    return sorted(claims, key=lambda claim: claim.verdict == UNMEASURED)


def markdown(text: str) -> Markup:
    """Turn Markdown into HTML below a heading of the page. HTML in it is shown as text, pictures are left out.

    Where a part has more than a few parts of its own, these are closed until asked for.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(text)
    if tokens and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        tokens = tokens[3:]  # the section has a heading already
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, max(3, int(token.tag[1]) + 1))}"
    html = ""
    for part in _split(tokens, "h3"):
        first, *rest = _split(part, "h4")
        html += parser.renderer.render(first, parser.options, {})
        inner = [
            (parser.renderer.render(each[:3], parser.options, {}), parser.renderer.render(each[3:], parser.options, {}))
            for each in rest
        ]
        if len(inner) > OPEN_PARTS:
            parts = "".join(_closed(heading.strip(), content) for heading, content in inner)
            html += _closed(f"All {len(inner)}", parts) if len(inner) > SEEN_PARTS else parts
        else:
            html += "".join(heading + content for heading, content in inner)
    # A wide table scrolls by itself. Text that looks like this tag is escaped by now.
    html = html.replace("<table>", f"{SCROLL}<table>").replace("</table>", "</table></div>")
    return Markup(html)


def _closed(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>\n{content}</details>\n"


def _split(tokens: Sequence[Token], tag: str) -> list[list[Token]]:
    """Cut before each heading of a level; the first part is what stands before them."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.type == "heading_open" and token.tag == tag and token.level == 0:
            parts.append([])
        parts[-1].append(token)
    return parts
