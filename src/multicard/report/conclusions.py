"""Conclusions of the experiment for the page: verdicts on the claims, and recommendations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from multicard.core.text import counted
from multicard.core.units import confidence
from multicard.papers.claims import NOT_MEASURED
from multicard.papers.limits import quantity_words
from multicard.report.wording import in_words

LAST = ("not judged", NOT_MEASURED)  # verdicts that say nothing of the claim

# More parts than this under one heading are collapsed one by one, and beyond the second limit all together too.
OPEN_PARTS = 4
SEEN_PARTS = 8

SCROLL = '<div class="scroll" role="group" aria-label="Table" tabindex="0">'


# Facts of a claim that are shown at once, and those that the table of its tests has.
SHOWN = ("refuted_if", "can_be_judged")
IN_TESTS = ("finding",)


@dataclass(frozen=True)
class ClaimTest:
    """A test of a claim in words: its pooled number, how far single comparisons differ, and the verdict."""

    statement: str
    decides: bool
    verdict: str
    pooled: str
    single: str
    refuted_if: str
    not_judged_because: str


@dataclass(frozen=True)
class Claim:
    """A claim, its verdict and tests, the facts that are `shown` with it, and `more` in a closed section."""

    text: str
    verdict: str
    tests: list[ClaimTest]
    shown: list[tuple[str, str]]
    more: list[tuple[str, str]]


def claims_of(table: pd.DataFrame, tests: pd.DataFrame) -> list[Claim]:
    """Give the claims of claims.csv with their tests of claims_tests.csv, those that were judged first."""
    claims = []
    for _, row in table.iterrows():
        facts = {name: row[name] for name in table if name not in ("claim_text", "verdict", *IN_TESTS) and row[name]}
        shown = [(in_words(name), facts[name]) for name in SHOWN if name in facts]
        more = [(in_words(name), value) for name, value in facts.items() if name not in SHOWN]
        own = [_claim_test(each) for each in tests[tests["claim"] == row["claim"]].to_dict("records")]
        claims.append(Claim(row["claim_text"], row["verdict"], own, shown, more))
    return sorted(claims, key=lambda claim: LAST.index(claim.verdict) if claim.verdict in LAST else -1)


def _claim_test(row: Mapping[str, Any]) -> ClaimTest:
    """Word a row of claims_tests.csv, whose cells are text."""
    names = ("value", "low", "high", "level", "lowest", "highest", "comparisons", "blocks")
    n = {name: pd.to_numeric(row.get(name) or None, errors="coerce") for name in names}
    n = {name: None if pd.isna(value) else float(value) for name, value in n.items()}

    def shown(value: float) -> str:
        return quantity_words(value, "share" if row.get("quantity") == "share" else "ratio")

    pooled = "" if n["value"] is None else shown(n["value"])
    if None not in (n["value"], n["low"], n["high"], n["level"], n["blocks"]):
        pooled += f" {confidence(shown(n['low']), shown(n['high']), round(n['blocks']), n['level'])}"
    single = ""
    if None not in (n["comparisons"], n["lowest"], n["highest"], n["blocks"]):
        single = f"{n['comparisons']:.0f} in {counted(round(n['blocks']), 'block')}"
        if n["comparisons"] > 1:
            single += f", {shown(n['lowest'])} to {shown(n['highest'])}"
    return ClaimTest(
        statement=row["test"],
        decides=row.get("decides") != "False",
        verdict=row["verdict"],
        pooled=pooled,
        single=single,
        refuted_if=row.get("refuted_if", ""),
        not_judged_because=row.get("not_judged_because", ""),
    )


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
