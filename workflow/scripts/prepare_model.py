"""Make one language model ready to tune."""

import argparse
from pathlib import Path

from multicard.core.errors import reported
from multicard.experiment.models import Model
from multicard.experiment.workload import preparer

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--name", required=True, help="name of the model")
parser.add_argument("--model", required=True, help="its definition as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder to make")
parser.add_argument(
    "--resources", type=Path, default=Path(__file__).parents[2] / "resources", help="folder of the shipped texts"
)
arguments = parser.parse_args()
with reported():
    model = Model.model_validate_json(arguments.model)
    preparer(model).prepare(arguments.name, model, arguments.out, arguments.resources)
