"""Extract the activity tables of a run from its trace, which is exported before if it is not yet.

python workflow/scripts/extract_activity.py results/runs/RUN
"""

import argparse
from pathlib import Path

from multicard.config.read_run import read_run
from multicard.core.errors import reported
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("run", type=Path, help="the run directory")
arguments = parser.parse_args()
with reported():
    export_run(arguments.run)
    extract_run(arguments.run, read_run(arguments.run).ranks)
