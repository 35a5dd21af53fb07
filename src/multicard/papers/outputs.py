"""The files of a results folder that the claims become."""

from collections.abc import Sequence
from pathlib import Path

from multicard.analysis.evidence import read_evidence
from multicard.core.files import atomic_write
from multicard.papers.claims import claims_table, comparisons_table, judge, pooled_table, read_claims


def write_claims(
    claims: Path, results: Path, scenarios: Sequence[str], verdicts: Path, tests: Path, comparisons: Path
) -> None:
    """Check the claims against the scenarios of a results folder: CSVs with a row per claim, test and comparison.

    Raises
    ------
    UserError
        If the claims are faulty, or a scenario's measures are not there.
    """
    judged = judge(read_claims(claims), read_evidence(results, scenarios))
    for table, path in (
        (claims_table(judged), verdicts),
        (pooled_table(judged), tests),
        (comparisons_table(judged), comparisons),
    ):
        with atomic_write(path) as temporary:
            table.to_csv(temporary, index=False)
