"""The files of a results folder that the claims become."""

from collections.abc import Sequence
from pathlib import Path

from multicard.analysis.evidence import read_evidence
from multicard.analysis.table_files import write_csv
from multicard.core.layout import CLAIM_COMPARISONS, CLAIM_TESTS, CLAIMS
from multicard.papers.claims import claims_table, comparisons_table, judge, pooled_table, read_claims


def write_claims(claims: Path, results: Path, scenarios: Sequence[str]) -> None:
    """Check the claims against the scenarios of a results folder: CSVs with a row per claim, test and comparison.

    Raises
    ------
    UserError
        If the claims are faulty, or a scenario's measures are not there.
    """
    judged = judge(read_claims(claims), read_evidence(results, scenarios))
    for table, name in (
        (claims_table(judged), CLAIMS),
        (pooled_table(judged), CLAIM_TESTS),
        (comparisons_table(judged), CLAIM_COMPARISONS),
    ):
        write_csv(table, results / name)
