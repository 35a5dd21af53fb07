"""Extract the activity tables of a run from its trace, which is exported before if it is not yet."""

import argparse
from pathlib import Path

from multicard.core.errors import reported
from multicard.experiment.read_run import read_run
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run", type=Path, help="the run directory")
arguments = parser.parse_args()
with reported():
    export_run(arguments.run)
    extract_run(arguments.run, read_run(arguments.run).ranks)
