"""Make one data set ready to train on.

python workflow/scripts/prepare_data.py --name NAME --dataset JSON --out FOLDER
"""

import argparse
from pathlib import Path

from pydantic import TypeAdapter

from multicard.core.errors import reported
from multicard.core.files import report_full_disk
from multicard.programs import input_for
from multicard.programs.datasets import Dataset

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--name", required=True, help="name of the data set")
parser.add_argument("--dataset", required=True, help="its definition as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder to make")
parser.add_argument(
    "--resources", type=Path, default=Path(__file__).parents[2] / "resources", help="folder of the shipped texts"
)
arguments = parser.parse_args()
dataset = TypeAdapter(Dataset).validate_json(arguments.dataset)
with reported(), report_full_disk(arguments.out):
    input_for(dataset).prepare(arguments.name, dataset, arguments.out, arguments.resources)
