"""Make one data set ready to train on."""

import argparse
from pathlib import Path

from pydantic import TypeAdapter

from multicard.errors import reported
from multicard.experiment.config import Dataset
from multicard.vision.prepare import prepare

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--name", required=True, help="name of the data set")
parser.add_argument("--dataset", required=True, help="its definition as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder to make")
arguments = parser.parse_args()
with reported():
    prepare(arguments.name, TypeAdapter(Dataset).validate_json(arguments.dataset), arguments.out)
