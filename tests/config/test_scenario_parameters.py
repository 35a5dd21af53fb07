"""The sections `fixed` and `vary` have the parameters of all workloads, and take the values that these take."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from multicard.config.experiment import Scenario
from multicard.config.figures import FIGURES
from multicard.config.scenario_parameters import Fixed, Vary
from multicard.launchers import LAUNCHERS
from multicard.profilers import PROFILERS
from multicard.programs import PROGRAMS
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.vision.strategies import STRATEGIES
from multicard.runs.parameters import ARGS

FIELDS = [(work.name, name) for work in PROGRAMS.values() for name in work.parameters.model_fields]
# Workloads have these with values of their own, all of which `fixed` takes.
OF_PROGRAMS = ("workload", "model", "precision", "learning_rate")


def accepted(model: Any, name: str) -> dict[str, Any]:
    """JSON schema of the values that a field accepts."""
    field = model.model_fields[name]
    schema = TypeAdapter(field.rebuild_annotation()).json_schema()
    return {key: value for key, value in schema.items() if key not in ("title", "description", "label")}


def test_fixed_has_the_parameters_of_all_workloads_in_their_order() -> None:
    assert list(Fixed.model_fields) == list(dict.fromkeys(name for _, name in FIELDS))


def test_vary_has_those_that_can_be_listed_and_the_users_own_last() -> None:
    listable = [name for name in Fixed.model_fields if name not in ("workload", "repeat", ARGS)]
    assert list(Vary.model_fields) == [*listable, ARGS]


@pytest.mark.parametrize(("workload", "name"), [field for field in FIELDS if field[1] not in OF_PROGRAMS])
def test_fixed_takes_what_a_workload_takes(workload: str, name: str) -> None:
    assert accepted(Fixed, name) == accepted(PROGRAMS[workload].parameters, name)


@pytest.mark.parametrize("name", list(Vary.model_fields)[:-1])
def test_vary_lists_what_fixed_takes(name: str) -> None:
    assert accepted(Vary, name) == {"type": "array", "minItems": 1, "items": accepted(Fixed, name)}


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("workload", list(PROGRAMS)),
        ("strategy", list(STRATEGIES)),
        ("technique", list(TECHNIQUES)),
        ("profiler", ["auto", *PROFILERS]),
        ("launcher", ["auto", *LAUNCHERS]),
    ],
)
def test_the_choices_of_a_parameter_are_those_that_are_there(name: str, choices: list[str]) -> None:
    assert accepted(Fixed, name)["enum"] == choices


def test_a_scenario_can_ask_for_the_figures_of_the_catalog() -> None:
    assert accepted(Scenario, "figures")["items"]["enum"] == list(FIGURES)
