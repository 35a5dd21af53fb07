"""The measures that only adopted runs have."""

from typing import Any

from multicard.core.values import Row
from multicard.runs.measures import Measures
from multicard.runs.record import RunRecord

MEASURES: dict[str, str] = {
    "steps_per_s": "1 / iteration_time_s: the throughput in steps, where samples are not known",
    "steps_from": "what of the traces tells steps; empty where nothing does",
    "traced_devices": "GPUs that the traces show at work, of all `devices`",
}


def measure(record: RunRecord, common: Measures, steps: Any, epochs: Any) -> Row:
    """Return the measures of one adopted run.

    `common`: the measures that every workload has. Where the traces show no steps, its `iteration_time_s` is None, and
    `steps_per_s` is None, too. `steps` and `epochs` are not used. Raises `ValueError` if the run was not adopted.
    """
    step_s = common.iteration_time_s
    adopted = record.adopted
    if adopted is None:
        raise ValueError("found no `adopted`")
    return {
        "steps_per_s": None if step_s is None else 1 / step_s,
        "steps_from": adopted.steps_from,
        "traced_devices": adopted.traced_devices,
    }
