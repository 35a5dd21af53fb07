"""Verdicts on the papers' claims, for the page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from multicard.core.text import counted
from multicard.core.units import confidence
from multicard.papers.limits import quantity_words
from multicard.papers.verdicts import NOT_MEASURED
from multicard.report.results import Results
from multicard.report.wording import in_words

LAST = ("not judged", NOT_MEASURED)  # verdicts that say nothing of the claim

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


def judged_claims(results: Results) -> list[Claim]:
    """Give the claims if any was judged by these runs; none otherwise."""
    if results.claims is None or results.claims["verdict"].isin(LAST).all():
        return []
    return claims_of(results.claims, results.claim_tests)


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
