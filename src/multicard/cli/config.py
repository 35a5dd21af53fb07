"""`multicard config`."""

import argparse

from multicard.cli._command import Command, add_configuration
from multicard.core.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the configuration and what to print of it."""
    parser.add_argument("key", nargs="?", help="print the value of this key only, such as results")
    add_configuration(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the checked configuration as YAML, with the defaults of its own keys, or the value of one key."""
    import yaml

    from multicard.experiment.load import read_experiment

    experiment = read_experiment(arguments.config)
    # Of parameters only what is stated: a scenario's own go before those of all scenarios, defaults do not.
    values = experiment.model_dump(mode="json", exclude_none=True)
    values |= experiment.model_dump(mode="json", exclude_unset=True)
    if arguments.key is None:
        print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")
    elif arguments.key not in values:
        raise UserError(f"{arguments.config}: has no key {arguments.key}, expected one of {', '.join(values)}")
    elif isinstance(values[arguments.key], str | int):
        print(values[arguments.key])
    else:
        print(yaml.safe_dump(values[arguments.key], sort_keys=False, allow_unicode=True), end="")


COMMAND = Command("config", 15, "validate a configuration and print it, or one of its keys", add_arguments, run)
