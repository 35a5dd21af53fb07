"""Print a file that is generated from the code: the JSON schema of configuration files, or the page about parameters.

python -m multicard.config > workflow/schemas/config.schema.json
python -m multicard.config --docs > docs/parameters.md
"""

import argparse
import json

from multicard.config.parameters_page import page
from multicard.config.schema import json_schema

parser = argparse.ArgumentParser(prog="python -m multicard.config", description="Write the configuration's schema.")
parser.add_argument("--docs", action="store_true", help="write the page about parameters instead")
print(page() if parser.parse_args().docs else json.dumps(json_schema(), indent=2, ensure_ascii=False))
