"""Check the papers' claims against the measurements, and recommend what to change.

python workflow/scripts/conclude.py --results results [SCENARIO ...]
"""

import argparse
from pathlib import Path

from multicard.answers.outputs import write_recommendations
from multicard.core.errors import reported
from multicard.core.layout import RECOMMENDATIONS
from multicard.papers.tables import write_claims

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("scenarios", nargs="*", help="names of the scenarios to judge by")
parser.add_argument("--results", type=Path, required=True, help="results folder, where the files are written too")
arguments = parser.parse_args()
with reported():
    write_claims(arguments.results, arguments.scenarios)
    write_recommendations(arguments.results, arguments.scenarios, arguments.results / RECOMMENDATIONS)
