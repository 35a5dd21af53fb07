"""Put recorded runs into the folder of run directories, each as if it had run here, with the archive it is from."""

import argparse
import json
from pathlib import Path

from multicard.archive.unpack import place_runs
from multicard.core.errors import reported

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--runs", required=True, help="ids of the runs to take from each archive, by its path, as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder of the run directories")
arguments = parser.parse_args()
with reported():
    for archive, runs in json.loads(arguments.runs).items():
        place_runs(Path(archive), arguments.out, runs)
