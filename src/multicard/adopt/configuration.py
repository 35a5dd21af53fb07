"""The configuration whose runs are those of a table of traces."""

import math
from collections.abc import Sequence
from typing import Any

from multicard.adopt.table import TracedRun
from multicard.core.errors import UserError
from multicard.experiment.load import check
from multicard.experiment.runs import distinct, expand
from multicard.experiment.workload import parameters_of
from multicard.runs.parameters import ARGS, ARGS_PREFIX, flat, nested

SCENARIO = "adopted"
MOST = 500  # configurations that the values of a table may combine to
FIGURES = (
    "step_times", "time_shares", "cuda_api", "kernel_classes", "memory_transfers", "device_time", "collectives",
)  # fmt: skip


def configuration(runs: Sequence[TracedRun]) -> dict[str, Any]:
    """A configuration that expands into the runs, without `results`.

    Raises `UserError` if there is none with at most `MOST` runs, or two values are the same.
    """
    stated = [_stated(run) for run in runs]
    values = {name: _distinct([each[name] for each in stated]) for name in stated[0]}
    varied = {name: each for name, each in values.items() if len(each) > 1}
    repeats = max(run.parameters.get("repeat", 1) for run in runs)
    combined = repeats * math.prod(map(len, varied.values()))
    if combined > MOST:
        named = [name.removeprefix(ARGS_PREFIX) for name in varied] + ["repeat"] * (repeats > 1)
        raise UserError(
            f"the values of {', '.join(named)} combine to {combined} runs, "
            f"more than {MOST}, and {len(runs)} have traces; leave out columns that only name a trace"
        )
    fixed = {name: each[0] for name, each in values.items() if name not in varied and (name, each) != ("nodes", [1])}
    several = "devices" in varied
    question = "What does another GPU gain, and where does the time go?" if several else "Where does the time go?"
    scenario = {
        "question": f"{question} (adopted traces)",
        "fixed": {"workload": "adopted", **nested(fixed)},
        **({"vary": nested(varied)} if varied else {}),
        "repeats": repeats,
        "figures": [*(("iteration_time", "speedup") if several else ()), *FIGURES],
    }
    config = {"scenarios": {SCENARIO: scenario}}
    expanded = distinct(expand(check(config, "multicard analyze --as-runs", outside=False)))
    for run in runs:
        if run.id not in expanded:
            raise UserError(f"{run.where}: states a value that another row writes otherwise, such as 1 and 1.0")
    return config


def _stated(run: TracedRun) -> dict[str, Any]:
    p = parameters_of(run.parameters)
    return flat({"program": p.program, "devices": p.devices, "nodes": p.nodes, ARGS: p.args})


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Each value once: numbers by their size, others as they come."""
    found = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in found)
    return sorted(found) if numbers else found
