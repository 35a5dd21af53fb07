"""Check the papers' claims against the measurements."""

import argparse
from pathlib import Path

from multicard.core.errors import reported
from multicard.papers.outputs import write_claims

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scenarios", nargs="*", help="names of the scenarios to judge by")
parser.add_argument("--claims", type=Path, required=True, help="file of the claims and their tests")
parser.add_argument("--results", type=Path, required=True, help="results folder")
parser.add_argument("--verdicts", type=Path, required=True, help="CSV to write: one row per claim")
parser.add_argument("--tests", type=Path, required=True, help="CSV to write: one row per test of a claim")
parser.add_argument("--comparisons", type=Path, required=True, help="CSV to write: one row per comparison made")
arguments = parser.parse_args()
with reported():
    write_claims(
        arguments.claims,
        arguments.results,
        arguments.scenarios,
        arguments.verdicts,
        arguments.tests,
        arguments.comparisons,
    )
