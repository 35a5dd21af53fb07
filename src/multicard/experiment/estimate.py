"""About how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable

from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS

START_S = 60.0  # starting processes, the profiled window, writing the trace


def gpu_hours(runs: Iterable[Run], time_limit_min: float) -> tuple[float, int]:
    """Estimated hours summed over GPUs, and the number of GPU runs whose amount of work is not known.

    A run counts its GPUs for as long as it takes, at most its time limit.
    """
    total, unknown = 0.0, 0
    for run in runs:
        p = run.parameters
        if p.device != "cuda":
            continue
        seconds = WORKLOADS[p.workload].training_s(p, run.inputs)
        if seconds is None:
            unknown += 1
            continue
        total += p.devices * min(START_S + seconds, 60.0 * time_limit_min) / 3600
    return total, unknown
