"""Export the reports of a run to SQLite."""

import argparse
from pathlib import Path

from multicard.core.errors import reported
from multicard.trace.export import export_run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("run", type=Path, help="the run directory")
arguments = parser.parse_args()
with reported():
    export_run(arguments.run)
