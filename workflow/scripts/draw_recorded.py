"""Make figures, tables, conclusions and the report of an archive of recorded runs."""

import argparse
from pathlib import Path

from multicard import read_results
from multicard.core.errors import reported

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("archive", type=Path, help="the archive")
parser.add_argument("--claims", type=Path, required=True, help="file of the claims and their tests")
parser.add_argument("--out", type=Path, required=True, help="folder to make, which must be empty if it is there")
arguments = parser.parse_args()
with reported():
    read_results(arguments.archive).draw(arguments.out, arguments.claims)
