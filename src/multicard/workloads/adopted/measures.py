"""The measures that only adopted runs have."""

from typing import Any

from multicard.core.values import Row
from multicard.runs.measures import PER_S, Definition, Measures
from multicard.runs.record import RunRecord

MEASURES: dict[str, Definition] = {
    "steps_per_s": Definition(
        "1 / `iteration_time_s`: the throughput in steps, the only one if the number of samples is unknown.", PER_S
    ),
    "steps_from": Definition("How steps were detected in the traces; empty if none were."),
    "traced_devices": Definition("GPUs that the traces show at work, of all `devices`."),
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
