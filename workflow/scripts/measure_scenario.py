"""Gather the measures of a scenario's runs in one table, and their outcomes in another."""

import argparse
import json
from pathlib import Path

from multicard.analysis.measures import measure_scenario, outcome_table
from multicard.analysis.scaling import add_scaling
from multicard.files import whole

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folders", type=Path, nargs="*", help="run directories")
parser.add_argument("--not-run", default="{}", help="reasons by run id for runs that cannot run here, as JSON")
parser.add_argument("--measures", type=Path, required=True, help="CSV to write: one row per run, its measures")
parser.add_argument("--runs", type=Path, required=True, help="CSV to write: one row per run, its outcome")
arguments = parser.parse_args()
for path, table in (
    (arguments.measures, add_scaling(measure_scenario(arguments.folders))),
    (arguments.runs, outcome_table(arguments.folders, json.loads(arguments.not_run))),
):
    with whole(path) as temporary:
        table.to_csv(temporary, index=False)
