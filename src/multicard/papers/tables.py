"""Verdicts on the papers' claims as tables: claims.csv has a row for each claim, claims_tests.csv for each test."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from multicard.core.layout import CLAIM_TESTS, CLAIMS
from multicard.core.values import Row
from multicard.papers import paper_a, paper_b
from multicard.papers.judge import JudgedClaim, judge
from multicard.papers.verdicts import TestResult
from multicard.results.results import Results
from multicard.results.tables import write_csv

# The claims in the order in which both tables have them.
BOTH_PAPERS = (*paper_a.CLAIMS, *paper_b.CLAIMS)


def judge_papers(results: Results) -> list[JudgedClaim]:
    """Judge all claims of both papers by the measurements."""
    return judge(BOTH_PAPERS, results)


def write_claims(folder: Path, scenarios: Sequence[str]) -> None:
    """Judge the papers' claims by the scenarios of a results folder, and write both tables into that folder.

    Raises `UserError` if the measures of a scenario are missing.
    """
    judged = judge_papers(Results.read(folder, scenarios))
    write_csv(claims_table(judged), folder / CLAIMS)
    write_csv(table_of_tests(judged), folder / CLAIM_TESTS)


def claims_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """Return the table of claims, with a row for each claim."""
    return pd.DataFrame([_claim_row(result) for result in judged])


def _claim_row(judged: JudgedClaim) -> Row:
    claim = judged.claim
    return {
        "claim": claim.id,
        "verdict": judged.verdict,
        "claim_text": claim.claim,
        "paper": claim.paper,
        "source": claim.source,
        "hardware": claim.hardware,
        "refuted_if": claim.refuted_if,
        "can_be_judged": judged.can_be_judged,
        "finding": judged.finding,
        "conditions": judged.conditions,
        "our_choice": claim.our_choice,
    }


def table_of_tests(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """Return the table of tests, with a row for each test. Its numbers are empty if it had no comparisons."""
    return pd.DataFrame([_test_row(result.claim.id, test) for result in judged for test in result.tests])


def _test_row(claim: str, result: TestResult) -> Row:
    pooled = result.pooled
    return {
        "claim": claim,
        "test": result.test.statement,
        "verdict": result.verdict,
        "finding": result.finding,
        "value": pooled.value if pooled else None,
        "low": pooled.low if pooled else None,
        "high": pooled.high if pooled else None,
        "level": pooled.coverage if pooled else None,
        "comparisons": len(result.comparisons),
        "blocks": pooled.repeats if pooled else None,
        "not_judged_because": result.not_judged_because,
    }
