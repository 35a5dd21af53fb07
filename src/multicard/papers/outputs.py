"""The files of a results folder that the claims become, and their tables."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from multicard.analysis.evidence import read_evidence
from multicard.analysis.tables import write_csv
from multicard.core.layout import CLAIM_COMPARISONS, CLAIM_TESTS, CLAIMS
from multicard.papers.claims import JudgedClaim, judge, machines, read_claims
from multicard.papers.verdicts import pooled_interval

COLUMNS = (
    "claim", "verdict", "claim_text", "paper", "source", "hardware", "refuted_if", "can_be_judged", "finding",
    "conditions", "other_evidence", "our_choice",
)  # fmt: skip
TEST_COLUMNS = (
    "claim", "test", "decides", "verdict", "quantity", "value", "low", "high", "level", "p_value", "above", "below",
    "refuted_if", "comparisons", "lowest", "highest", "blocks", "not_judged_because",
)  # fmt: skip
COMPARISON_COLUMNS = (
    "claim", "test", "comparison", "configuration", "value", "low", "high", "repeats", "pooled", "not_judged_because",
    "machine", "runs",
)  # fmt: skip


def write_claims(claims: Path, results: Path, scenarios: Sequence[str]) -> None:
    """Check the claims against the scenarios of a results folder: CSVs with a row per claim, test and comparison.

    Raises
    ------
    UserError
        If the claims are faulty, or a scenario's measures are not there.
    """
    judged = judge(read_claims(claims), read_evidence(results, scenarios))
    write_csv(claims_table(judged), results / CLAIMS)
    write_csv(pooled_table(judged), results / CLAIM_TESTS)
    write_csv(comparisons_table(judged), results / CLAIM_COMPARISONS)


def claims_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per claim, columns `COLUMNS`."""
    own = ("verdict", "can_be_judged", "finding", "conditions", "other_evidence")
    stated = ("paper", "source", "hardware", "refuted_if", "our_choice")
    rows = [
        {"claim": each.claim.id, "claim_text": each.claim.claim}
        | {name: getattr(each.claim, name) for name in stated}
        | {name: getattr(each, name) for name in own}
        for each in judged
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def pooled_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per test with its pooled number, columns `TEST_COLUMNS`."""
    rows = []
    for claim, result in ((each.claim.id, result) for each in judged for result in each.tests):
        test, pooled = result.test, result.pooled
        row = {"claim": claim, "test": test.statement, "decides": test.decides, "verdict": result.verdict,
               "quantity": test.quantity, "above": test.above, "below": test.below, "refuted_if": test.refuted_if(),
               "comparisons": 0, "not_judged_because": result.not_judged_because}  # fmt: skip
        if pooled is not None:
            found, values = pooled.found, [single.value for _, single in pooled.single]
            row |= {"value": found.value, "low": found.low, "high": found.high, "level": pooled.level,
                    "p_value": found.p_value, "comparisons": len(values), "lowest": min(values),
                    "highest": max(values), "blocks": found.repeats}  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows, columns=list(TEST_COLUMNS))


def comparisons_table(judged: Sequence[JudgedClaim]) -> pd.DataFrame:
    """One row per single comparison, for information; columns `COMPARISON_COLUMNS`."""
    rows = []
    for claim, result in ((each.claim.id, result) for each in judged for result in each.tests):
        single = [(one, found, result.pooled.blocks) for one, found in (result.pooled.single if result.pooled else [])]
        quantity = result.test.quantity
        others = [(one, pooled_interval([one.by_block], quantity), one.by_block) for one in result.others]
        for index, (one, found, blocks) in enumerate([*single, *others]):
            runs = one.runs(blocks)
            rows.append(
                {"claim": claim, "test": result.test.statement, "comparison": one.what, "configuration": one.under,
                 "value": found.value, "low": found.low, "high": found.high, "repeats": found.repeats,
                 "pooled": index < len(single), "not_judged_because": one.why_not, "machine": machines(runs),
                 "runs": " ".join(dict.fromkeys(run.run for run in runs))}
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))
