"""Gather what a scenario's runs recorded: their measures, their outcomes, and tables of the completed ones."""

import argparse
import json
from pathlib import Path

from multicard.analysis.outputs import write_scenario
from multicard.core.errors import reported

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folders", type=Path, nargs="*", help="run directories")
parser.add_argument("--not-run", default="{}", help="reasons by run id for runs that cannot run here, as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder to write measures.csv, runs.csv and tables to")
parser.add_argument("--machines", type=Path, nargs="*", default=[], help="records of machines' limits")
arguments = parser.parse_args()
with reported():
    write_scenario(arguments.folders, json.loads(arguments.not_run), arguments.out, arguments.machines)
