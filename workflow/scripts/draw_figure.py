"""Draw one figure of a scenario as PNG, SVG and PDF, with the numbers as CSV."""

import argparse
from pathlib import Path

import pandas as pd

from multicard.figures.catalog import FIGURES, draw

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--figure", required=True, choices=FIGURES, help="name of the figure")
parser.add_argument("--measures", type=Path, required=True, help="measures.csv of the scenario")
parser.add_argument("--out", type=Path, required=True, help="path of the files to write, without suffix")
arguments = parser.parse_args()
draw(arguments.figure, pd.read_csv(arguments.measures), arguments.out)
