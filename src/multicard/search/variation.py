"""Replace values of a scenario's parameters by those of `--vary`, or by all batch sizes that may be tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.config.experiment import Experiment
from multicard.config.figures import FIGURES
from multicard.config.runs import expand_scenario
from multicard.core.errors import UserError
from multicard.core.units import ARGS_PREFIX
from multicard.programs import PROGRAMS
from multicard.runs.parameters import ARGS, flat, nested
from multicard.search.batch import MOST_REPEATS
from multicard.search.batch_sizes import sizes

# The value that stands for all batch sizes. It is allowed for `BATCH_SIZE`, and for users' own parameters.
AUTO, BATCH_SIZE = "auto", "batch_size"
# The largest batch to try if the user states none.
LARGEST_BATCH = 65_536
# Parameters whose value is right for one batch size only, so that they must not be set if batch sizes are searched.
OF_ONE_BATCH_SIZE = ("samples_per_step", "samples_per_device")
# The texts of booleans, as a configuration file states them.
BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True)
class AutoBatch:
    """A parameter whose batch size is searched for."""

    parameter: str
    # The size that the search begins with.
    start: int
    # The largest size that it may try.
    largest: int


@dataclass(frozen=True)
class Variation:
    """A configuration with a single scenario, in which values of parameters were replaced."""

    # In the form of a configuration file.
    config: Mapping[str, Any]
    # The batch size to search for; None if no parameter has the value `AUTO`.
    auto: AutoBatch | None


def vary_scenario(
    config: Mapping[str, Any],
    experiment: Experiment,
    name: str,
    vary: Sequence[tuple[str, list[Any]]],
    goal: str,
    largest: int | None,
) -> Variation:
    """Return a configuration with the scenario `name` alone, in which parameters have the values of `vary`.

    `vary`: parameters with their values, as `--vary` states them. `goal`: measure to optimize. `largest`: the largest
    batch to try, for a parameter whose value is `AUTO`; None for `LARGEST_BATCH`.

    Raises `UserError` if these do not fit together, or if the scenario's batch size cannot be searched for.
    """
    scenario = config["scenarios"][name]
    stated = _values(vary, PROGRAMS[experiment.workload(name)].parameters.model_fields)
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
    """Return the values of each parameter, by its column name.

    If the program has parameters of the user's own, a name that is not one of its `fields` is such a parameter.

    Raises `UserError` if a parameter is named twice.
    """
    values: dict[str, list[Any]] = {}
    for parameter, listed in vary:
        is_users = ARGS in fields and parameter not in fields
        key = f"{ARGS_PREFIX}{parameter}" if is_users else parameter
        if key in values:
            raise UserError(f"--vary: names {parameter} twice, expected --vary NAME=VALUE,... once for each")
        values[key] = listed if is_users else [BOOLEANS.get(str(value), value) for value in listed]
    return values


def _auto_parameter(values: Mapping[str, list[Any]], goal: str, largest: int | None) -> str | None:
    """Return the parameter whose only value is `AUTO`; None if there is none.

    Raises `UserError` if `largest` is given without such a parameter. With one, it is raised if the goal is not
    throughput, if a second parameter has the value `AUTO`, or if the parameter has other values, too.
    """
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
    """Return the search for a batch size, which begins with the one that the first run of the scenario has.

    Raises `UserError` if that is not a batch size, if `largest` is below 1, or if a parameter in `OF_ONE_BATCH_SIZE` is
    set.
    """
    stated = flat(expand_scenario(experiment, name)[0].parameters.model_dump())
    start = stated.get(parameter)
    # `isinstance` would also accept a bool.
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
    """Raise `UserError` if another parameter than that of the batch size has several values."""
    for key, values in varied.items():
        if len(values) > 1 and key != auto.parameter:
            option = f"--vary {key.removeprefix(ARGS_PREFIX)}={values[0]}"
            raise UserError(f"scenarios.{name}: varies {key} too; choose one value, such as {option}")


def _drawable(figures: Sequence[str], varied: Mapping[str, list[Any]]) -> list[str]:
    """Return the figures that have no axis, or whose axis has several values; `step_breakdown` if there are none.

    A configuration with other figures would be refused.
    """
    axes = {figure: FIGURES[figure].axis for figure in figures}
    drawable = [figure for figure, axis in axes.items() if not axis or len(varied.get(axis, [])) > 1]
    return drawable or ["step_breakdown"]
