"""Hold the papers' claims against what the scenarios measured."""

import argparse
from pathlib import Path

from multicard.analysis.claims import claims_table, comparisons_table, judge, read_claims
from multicard.analysis.evidence import read_evidence
from multicard.errors import reported
from multicard.files import whole

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scenarios", nargs="*", help="names of the scenarios to judge by")
parser.add_argument("--claims", type=Path, required=True, help="file of the claims and their tests")
parser.add_argument("--results", type=Path, required=True, help="results folder")
parser.add_argument("--verdicts", type=Path, required=True, help="CSV to write: one row per claim")
parser.add_argument("--comparisons", type=Path, required=True, help="CSV to write: one row per comparison made")
arguments = parser.parse_args()
with reported():
    judged = judge(read_claims(arguments.claims), read_evidence(arguments.results, arguments.scenarios))
for path, table in (
    (arguments.verdicts, claims_table(judged)),
    (arguments.comparisons, comparisons_table(judged)),
):
    with whole(path) as temporary:
        table.to_csv(temporary, index=False)
