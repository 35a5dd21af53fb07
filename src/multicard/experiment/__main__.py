"""Print a file that is generated from the code: the JSON schema of configuration files, or the page about parameters.

python -m multicard.experiment > workflow/schemas/config.schema.json
python -m multicard.experiment --docs > docs/parameters.md
"""

import argparse
import json

from multicard.experiment.parameters_page import page
from multicard.experiment.schema import json_schema

parser = argparse.ArgumentParser(prog="python -m multicard.experiment", description="Write the configuration's schema.")
parser.add_argument("--docs", action="store_true", help="write the page about parameters instead")
print(page() if parser.parse_args().docs else json.dumps(json_schema(), indent=2, ensure_ascii=False))
