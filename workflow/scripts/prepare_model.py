"""Make one language model ready to tune.

python workflow/scripts/prepare_model.py --name NAME --model JSON --out FOLDER
"""

import argparse
from pathlib import Path

from multicard.core.errors import reported
from multicard.programs import input_for
from multicard.programs.models import Model

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--name", required=True, help="name of the model")
parser.add_argument("--model", required=True, help="its definition as JSON")
parser.add_argument("--out", type=Path, required=True, help="folder to make")
parser.add_argument(
    "--resources", type=Path, default=Path(__file__).parents[2] / "resources", help="folder of the shipped texts"
)
arguments = parser.parse_args()
with reported():
    model = Model.model_validate_json(arguments.model)
    input_for(model).prepare(arguments.name, model, arguments.out, arguments.resources)
