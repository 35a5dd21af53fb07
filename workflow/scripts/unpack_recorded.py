"""Put recorded runs into the folder of run directories, each as if it had run here, with the archive it is from."""

import argparse
import json
from pathlib import Path

from multicard.archive.unpack import place_runs
from multicard.core.errors import reported

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--runs", type=Path, required=True, help="JSON file: ids of runs to take, by archive")
parser.add_argument("--out", type=Path, required=True, help="folder of the run directories")
arguments = parser.parse_args()
with reported():
    for archive, runs in json.loads(arguments.runs.read_text(encoding="utf-8")).items():
        place_runs(Path(archive), arguments.out, runs)
