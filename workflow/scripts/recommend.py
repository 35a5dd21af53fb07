"""Name each configuration's bottleneck, what to try, and the best configuration for each goal."""

import argparse
from pathlib import Path

from multicard.analysis.outputs import write_recommendations
from multicard.core.errors import reported

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("scenarios", nargs="*", help="names of the scenarios to read")
parser.add_argument("--results", type=Path, required=True, help="results folder")
parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
arguments = parser.parse_args()
with reported():
    write_recommendations(arguments.results, arguments.scenarios, arguments.out)
