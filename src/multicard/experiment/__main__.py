"""Write the JSON schema of configuration files: `python -m multicard.experiment > FILE`."""

import json

from multicard.experiment.config import json_schema

print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
