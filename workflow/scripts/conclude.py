"""Check the papers' claims against the measurements, and recommend what to change."""

import argparse
from pathlib import Path

from multicard.analysis.outputs import write_recommendations
from multicard.core.errors import reported
from multicard.core.layout import RECOMMENDATIONS
from multicard.papers.tables import write_claims

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scenarios", nargs="*", help="names of the scenarios to judge by")
parser.add_argument("--claims", type=Path, required=True, help="file of the claims and their tests")
parser.add_argument("--results", type=Path, required=True, help="results folder, where the files are written too")
arguments = parser.parse_args()
with reported():
    write_claims(arguments.claims, arguments.results, arguments.scenarios)
    write_recommendations(arguments.results, arguments.scenarios, arguments.results / RECOMMENDATIONS)
