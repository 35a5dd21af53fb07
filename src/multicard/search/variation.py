"""A scenario with other values of its parameters, or with all batch sizes that may be tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.core.errors import UserError
from multicard.core.units import ARGS_PREFIX
from multicard.experiment.config import Experiment
from multicard.experiment.figures import FIGURES
from multicard.experiment.runs import expand_scenario
from multicard.experiment.workload import WORKLOADS
from multicard.runs.parameters import ARGS, flat, nested
from multicard.search.batch import MOST_REPEATS
from multicard.search.batch_sizes import sizes

# The value that stands for all batch sizes, and the parameter that has it but for users' own ones.
AUTO, BATCH_SIZE = "auto", "batch_size"
# The largest batch to try if none is stated.
LARGEST_BATCH = 65_536
# Parameters whose value is right for one batch size only.
OF_ONE_BATCH_SIZE = ("samples_per_step", "samples_per_device")
# Booleans as a configuration file states them.
BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class AutoBatch:
    """A parameter whose values are batch sizes to choose from."""

    parameter: str
    # The size to begin with, and the largest to try.
    start: int
    largest: int


@dataclass(frozen=True)
class Variation:
    """A configuration with a single scenario, whose values were replaced."""

    config: dict[str, Any]
    # None if all values are stated.
    auto: AutoBatch | None


def vary_scenario(
    config: Mapping[str, Any],
    experiment: Experiment,
    name: str,
    vary: Sequence[tuple[str, list[Any]]],
    goal: str,
    largest: int | None,
) -> Variation:
    """Return a configuration with that scenario alone and other values of its parameters.

    `vary`: parameters with their values, as `--vary` states them. `largest`: the largest batch to try of a parameter
    whose value is `AUTO`.
    Raises `UserError` if these do not fit together, or the scenario's batch size cannot be chosen.
    """
    scenario = config["scenarios"][name]
    stated = _values(vary, WORKLOADS[experiment.workload(name)].parameters.model_fields)
    parameter = _auto_parameter(stated, goal, largest)
    auto = None
    repeats = scenario.get("repeats", 1)
    if parameter is not None:
        auto = _auto_batch(experiment, name, parameter, LARGEST_BATCH if largest is None else largest)
        stated[parameter] = sizes(auto.start, auto.largest)
        repeats = max(repeats, MOST_REPEATS)
    fixed = {key: value for key, value in flat(scenario.get("fixed") or {}).items() if key not in stated}
    varied = flat(scenario.get("vary") or {}) | stated
    if auto is not None:
        _refuse_other_varied(name, varied, auto)
    changed = {
        "fixed": nested(fixed),
        "vary": nested(varied),
        "repeats": repeats,
        "figures": _drawable(scenario["figures"], varied),
    }
    return Variation({**config, "scenarios": {name: scenario | changed}}, auto)


def _values(vary: Sequence[tuple[str, list[Any]]], fields: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return values by the name of their column: a parameter that is none of the workload's is the user's own."""
    values: dict[str, list[Any]] = {}
    for parameter, listed in vary:
        is_users = ARGS in fields and parameter not in fields
        key = f"{ARGS_PREFIX}{parameter}" if is_users else parameter
        if key in values:
            raise UserError(f"--vary: names {parameter} twice, expected --vary NAME=VALUE,... once for each")
        values[key] = listed if is_users else [BOOLEANS.get(str(value), value) for value in listed]
    return values


def _auto_parameter(values: Mapping[str, list[Any]], goal: str, largest: int | None) -> str | None:
    """Return the parameter whose value is `AUTO`; None without one."""
    automatic = [key for key in values if AUTO in values[key] and (key == BATCH_SIZE or key.startswith(ARGS_PREFIX))]
    if not automatic:
        if largest is not None:
            raise UserError(f"--largest: expected with --vary NAME={AUTO}")
        return None
    if goal != "throughput":
        raise UserError(f"--goal: found {goal}, expected throughput with --vary NAME={AUTO}")
    if len(automatic) > 1 or values[automatic[0]] != [AUTO]:
        raise UserError(f"--vary: {AUTO} is to be the only value, and of one parameter")
    return automatic[0]


def _auto_batch(experiment: Experiment, name: str, parameter: str, largest: int) -> AutoBatch:
    """Return batch sizes to choose from, which begin with the scenario's own."""
    stated = flat(expand_scenario(experiment, name)[0].parameters.model_dump())
    start = stated.get(parameter)
    # A bool is an int, too, but no batch size.
    if type(start) is not int or start < 1:
        raise UserError(f"--vary {AUTO}: {parameter} of {name} is {start!r}, expected a batch size to begin with")
    if largest < 1:
        raise UserError(f"--largest: found {largest}, expected 1 or more")
    counts = [key for key in OF_ONE_BATCH_SIZE if stated.get(key) is not None]
    if counts:
        raise UserError(
            f"scenarios.{name}: {counts[0]} is right for one batch size only; leave it out: PyTorch's loader tells the "
            "samples, or multicard.marks.step(samples=...) in the script"
        )
    return AutoBatch(parameter, min(start, largest), largest)


def _refuse_other_varied(name: str, varied: Mapping[str, list[Any]], auto: AutoBatch) -> None:
    for key, values in varied.items():
        if len(values) > 1 and key != auto.parameter:
            option = f"--vary {key.removeprefix(ARGS_PREFIX)}={values[0]}"
            raise UserError(f"scenarios.{name}: varies {key} too; choose one value, such as {option}")


def _drawable(figures: Sequence[str], varied: Mapping[str, list[Any]]) -> list[str]:
    """Return the figures whose axis still varies, so that the configuration is valid."""
    axes = {figure: FIGURES[figure].axis for figure in figures}
    drawable = [figure for figure, axis in axes.items() if not axis or len(varied.get(axis, [])) > 1]
    return drawable or ["step_breakdown"]
