"""Make the configuration of the runs in a table of traces."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from multicard.adopt.table import TracedRun
from multicard.config.load import check
from multicard.config.runs import distinct, expand
from multicard.core.errors import UserError
from multicard.core.values import Cell, JsonObject, Row
from multicard.programs import USER_PROGRAM, parameters_of
from multicard.runs.parameters import ARGS, ARGS_PREFIX, flat, nested

SCENARIO = "adopted"
# The values of a table may combine to at most this many runs.
MOST_RUNS = 500
FIGURES_OF_TRACES = (
    "step_times", "time_shares", "cuda_api", "kernel_classes", "memory_transfers", "device_time", "collectives",
)  # fmt: skip


def configuration(runs: Sequence[TracedRun]) -> JsonObject:
    """Return a configuration whose runs include the given runs. It does not state `results`.

    Its runs are all combinations of the values that the given runs have, so there may be runs without a trace.

    Raises `UserError` if these are more than `MOST_RUNS` runs, or two rows write the same value in two ways, such as 1
    and 1.0.
    """
    stated = [_stated(run) for run in runs]
    fixed: Row = {}
    varied: dict[str, list[Cell]] = {}
    for name in stated[0]:
        values = _distinct([parameters[name] for parameters in stated])
        if len(values) > 1:
            varied[name] = values
        elif (name, values) != ("nodes", [1]):
            # One node is the default.
            fixed[name] = values[0]
    repeats = max(run.parameters.get("repeat", 1) for run in runs)
    _check_combinations(varied, repeats, len(runs))
    config: JsonObject = {"scenarios": {SCENARIO: _scenario(fixed, varied, repeats)}}
    # `check` raises `UserError` if the configuration is not valid. It does not look at data, models and results.
    expanded = distinct(expand(check(config, "multicard analyze --as-runs", outside=False)))
    for run in runs:
        if run.id not in expanded:
            raise UserError(f"{run.where}: states a value that another row writes otherwise, such as 1 and 1.0")
    return config


def _check_combinations(varied: Mapping[str, Sequence[Any]], repeats: int, traced_runs: int) -> None:
    """Raise `UserError` if values and repeats combine to more than `MOST_RUNS` runs.

    `traced_runs`: number of runs that have traces, for the message.
    """
    combined = repeats * math.prod(len(listed) for listed in varied.values())
    if combined > MOST_RUNS:
        names = [name.removeprefix(ARGS_PREFIX) for name in varied]
        if repeats > 1:
            names.append("repeat")
        raise UserError(
            f"the values of {', '.join(names)} combine to {combined} runs, "
            f"more than {MOST_RUNS}, and {traced_runs} have traces; leave out columns that only name a trace"
        )


def _scenario(fixed: Mapping[str, Any], varied: Mapping[str, Sequence[Any]], repeats: int) -> JsonObject:
    """Return the scenario of the runs. It asks for speed-ups if the runs have different numbers of devices."""
    question = "Where does the time go?"
    figures = list(FIGURES_OF_TRACES)
    if "devices" in varied:
        question = "What does another GPU gain, and where does the time go?"
        figures = ["iteration_time", "speedup", *FIGURES_OF_TRACES]
    scenario: JsonObject = {
        "question": f"{question} (adopted traces)",
        "fixed": {"workload": USER_PROGRAM.name, **nested(fixed)},
    }
    if varied:
        scenario["vary"] = nested(varied)
    return {**scenario, "repeats": repeats, "figures": figures}


def _stated(run: TracedRun) -> Row:
    """Return the parameters of a run that a table may vary."""
    values = parameters_of(run.parameters).model_dump()
    return flat({name: values[name] for name in ("command", "launcher", "devices", "nodes", ARGS)})


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Return each value once: in rising order if all are numbers, else in the order of their first occurrence.

    >>> _distinct([8, 2, 8]), _distinct(["ddp", "dp", "ddp"])
    ([2, 8], ['ddp', 'dp'])
    """
    distinct_values = list(dict.fromkeys(values))
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct_values)
    return sorted(distinct_values) if are_numbers else distinct_values
