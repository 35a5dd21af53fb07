"""Write the report of an experiment: one HTML page with all its results, which fetches nothing.

python workflow/scripts/make_report.py --results results --scenarios FILE.json --out results/report.html
"""

import argparse
import json
from pathlib import Path

from multicard.core.errors import reported
from multicard.report.page import write_report
from multicard.report.results import ScenarioPlan
from multicard.workflow.report_source import note_source

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--results", type=Path, required=True, help="results folder of the experiment")
parser.add_argument(
    "--scenarios",
    type=Path,
    required=True,
    help='JSON file, questions and figures by scenario, in order: {"name": {"question": "…", "figures": ["…"]}}',
)
parser.add_argument("--configuration", default="", help="path of the configuration file that the report is of")
parser.add_argument("--out", type=Path, required=True, help="HTML file to write")
arguments = parser.parse_args()
stated = json.loads(arguments.scenarios.read_text(encoding="utf-8"))
plans = {name: ScenarioPlan(each["question"], tuple(each["figures"])) for name, each in stated.items()}
with reported():
    write_report(arguments.results, arguments.out, plans)
    if arguments.configuration:
        note_source(arguments.results, arguments.configuration)
