"""What users' scripts and configurations rely on, as tests/stable.yaml lists it.

New names are added to the list; to take one away needs a major version (CHANGELOG.md). `python tests/test_stable.py`
prints the list.
"""

import argparse
import json
import sys
from typing import Any

import yaml

from conftest import ROOT
from multicard.cli import COMMANDS
from multicard.config.experiment import PARAMETERS
from multicard.results.measure import MEASURES

STABLE = ROOT / "tests" / "stable.yaml"


def options(command: Any) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    return sorted(action.option_strings[-1] if action.option_strings else action.dest for action in parser._actions)


def keys(schema: dict[str, Any]) -> list[str]:
    """Keys of each section of a configuration, named by the section's model in the schema."""
    sections = {"": schema} | schema["$defs"]
    found = ((name, key) for name, section in sections.items() for key in section.get("properties", ()))
    return sorted(f"{name}.{key}".lstrip(".") for name, key in found)


def now() -> dict[str, Any]:
    return {
        "commands": {name: options(command) for name, command in sorted(COMMANDS.items())},
        "configuration": keys(json.loads((ROOT / "workflow/schemas/config.schema.json").read_text(encoding="utf-8"))),
        "measures.csv": sorted({"run", "outcome", *PARAMETERS, *MEASURES}),
    }


def test_commands_configuration_keys_and_columns_are_those_that_were_promised() -> None:
    assert now() == yaml.safe_load(STABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    yaml.safe_dump(now(), sys.stdout, sort_keys=False, default_flow_style=None, width=120)
