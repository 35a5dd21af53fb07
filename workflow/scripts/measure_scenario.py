"""Gather what a scenario's runs recorded: their measures, their outcomes, and tables of the completed ones.

python workflow/scripts/measure_scenario.py RUNS.json --out results/scenarios/NAME
"""

import argparse
import json
from pathlib import Path

from multicard.answers.outputs import write_scenario
from multicard.core.errors import reported

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "runs",
    type=Path,
    help="JSON file: `folders` of the runs; `not_run`, by run id why one cannot run here; and `looks` if repeats are "
    "added until they are decided",
)
parser.add_argument("--out", type=Path, required=True, help="folder to write measures.csv, runs.csv and tables to")
parser.add_argument("--machines", type=Path, nargs="*", default=[], help="records of machines' limits")
arguments = parser.parse_args()
with reported():
    runs = json.loads(arguments.runs.read_text(encoding="utf-8"))
    folders = list(map(Path, runs["folders"]))
    write_scenario(folders, runs["not_run"], arguments.out, arguments.machines, runs.get("looks", 1))
