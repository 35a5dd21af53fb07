"""Gather what a scenario's runs recorded: their measures, their outcomes, and tables of the completed ones."""

import argparse
import json
from pathlib import Path

from multicard.analysis.gathered import MEASURES, OUTCOME_TABLE, Gathered, gather, store
from multicard.analysis.measures import measure_scenario, outcome_table
from multicard.analysis.provenance import notes, synthetic
from multicard.analysis.scaling import add_scaling
from multicard.analysis.tables import write_scenario_tables
from multicard.errors import reported
from multicard.files import whole

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folders", type=Path, nargs="*", help="run directories")
parser.add_argument("--not-run", default="{}", help="reasons by run id for runs that cannot run here, as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder to write measures.csv, runs.csv and tables to")
arguments = parser.parse_args()
with reported():
    store(gather(arguments.folders), arguments.out)
    measures = add_scaling(measure_scenario(arguments.folders))
    for name, table in (
        (OUTCOME_TABLE, outcome_table(arguments.folders, json.loads(arguments.not_run))),
        (MEASURES, measures),
    ):
        with whole(arguments.out / name) as temporary:
            table.to_csv(temporary, index=False)
    gathered = Gathered(arguments.out)
    write_scenario_tables(measures, arguments.out, notes(gathered), synthetic(gathered))
