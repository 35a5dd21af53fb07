"""Verdicts on the papers' claims as tables: claims.csv has a row for each claim, claims_tests.csv for each test."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from multicard.core.layout import CLAIM_TESTS, CLAIMS
from multicard.core.values import Row
from multicard.papers.claims import read_claims
from multicard.papers.judge import JudgedClaim, TestResult, judge
from multicard.results.results import Results
from multicard.results.tables import write_csv

COLUMNS = (
    "claim", "verdict", "claim_text", "paper", "source", "hardware", "refuted_if", "can_be_judged", "finding",
    "conditions", "our_choice",
)  # fmt: skip
TEST_COLUMNS = (
    "claim", "test", "verdict", "finding", "value", "low", "high", "level", "comparisons", "blocks",
    "not_judged_because",
)  # fmt: skip


def write_claims(claims: Path, results: Path, scenarios: Sequence[str]) -> None:
    """Judge the claims of a file by the scenarios of a results folder, and write both tables into that folder.

    Raises `UserError` if the file of claims is faulty, or if the measures of a scenario are missing.
    """
    judged = judge(read_claims(claims), Results.read(results, scenarios))
    write_csv(claims_table(judged), results / CLAIMS)
    write_csv(table_of_tests(judged), results / CLAIM_TESTS)


def claims_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """Return the columns `COLUMNS` with a row for each claim."""
    rows = []
    for result in judged:
        stated = result.claim.model_dump()
        findings = {
            "claim": result.claim.id,
            "claim_text": result.claim.claim,
            "verdict": result.verdict,
            "can_be_judged": result.can_be_judged,
            "finding": result.finding,
            "conditions": result.conditions,
        }
        rows.append(stated | findings)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def table_of_tests(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """Return the columns `TEST_COLUMNS` with a row for each test. Its numbers are empty if it had no comparisons."""
    rows = [_test_row(claim.claim.id, result) for claim in judged for result in claim.tests]
    return pd.DataFrame(rows, columns=list(TEST_COLUMNS))


def _test_row(claim: str, result: TestResult) -> Row:
    row: Row = {
        "claim": claim,
        "test": result.test.statement,
        "verdict": result.verdict,
        "finding": result.finding,
        "comparisons": len(result.comparisons),
        "not_judged_because": result.not_judged_because,
    }
    if result.pooled is not None:
        row |= {
            "value": result.pooled.value,
            "low": result.pooled.low,
            "high": result.pooled.high,
            "level": result.pooled.coverage,
            "blocks": result.pooled.repeats,
        }
    return row
