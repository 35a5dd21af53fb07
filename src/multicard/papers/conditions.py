"""Conditions on configurations: which of them a claim or a test is about."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from multicard.config.experiment import is_parameter
from multicard.results.configuration import Configuration

# What a configuration must have, by the name of a parameter, of a measure, or `data_source` (the kind of the data set):
# a value, or a function that returns True for the values that fit. A value that was not recorded fits no function.
Where = Mapping[str, bool | int | str | Callable[[Any], bool] | None]

VISION = {"workload": "vision"}
LLM = {"workload": "llm"}
# The papers' images had 100 to 500 px and their model 8 billion weights. A billion is our limit.
LARGE_IMAGES: Where = {**VISION, "image_size": lambda pixels: pixels >= 100}
LARGE_MODELS: Where = {**LLM, "parameters": lambda weights: weights >= 1e9}


def fits(configuration: Configuration, where: Where) -> bool:
    """Return True if a configuration has all that `where` asks for."""
    for name, wanted in where.items():
        value = _value(configuration, name)
        is_wanted = value is not None and wanted(value) if callable(wanted) else value == wanted
        if not is_wanted:
            return False
    return True


def fitting(configurations: Sequence[Configuration], where: Where) -> list[Configuration]:
    """Return the configurations that have all that `where` asks for."""
    return [configuration for configuration in configurations if fits(configuration, where)]


def _value(configuration: Configuration, name: str) -> Any:
    """Return the value of a name in `Where`. That of a measure is from the first completed run that has one."""
    if name == "data_source":
        return configuration.provenance.data_source
    if is_parameter(name):
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)
