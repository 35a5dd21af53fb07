"""Draw one figure of a scenario as PNG, SVG and PDF, with the numbers as CSV."""

import argparse
from pathlib import Path

from multicard.analysis.gathered import Gathered
from multicard.errors import reported
from multicard.figures.catalog import FIGURES, draw

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--figure", required=True, choices=FIGURES, help="name of the figure")
parser.add_argument("--scenario", type=Path, required=True, help="folder of the scenario, with its measures and tables")
parser.add_argument("--out", type=Path, required=True, help="path of the files to write, without suffix")
arguments = parser.parse_args()
with reported():
    draw(arguments.figure, Gathered(arguments.scenario), arguments.out)
