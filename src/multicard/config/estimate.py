"""Estimate how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable
from dataclasses import dataclass

from multicard.config.runs import Run

# Seconds that are assumed for every run: to start the profiler, the processes, their libraries and the process group.
START_S = 30.0
# Seconds that are assumed for every profiled run: to end the processes, and to write, export and read the trace.
TRACE_S = 30.0


@dataclass(frozen=True)
class Cost:
    """The cost of runs on GPUs, if they run one after another."""

    wall_h: float  # hours from the start of the first run to the end of the last
    node_gpu_h: float  # hours × GPUs of the nodes that a run has for itself, summed over runs; unused GPUs count, too
    unknown: int  # number of runs whose amount of work is not known; they are left out of the hours


def estimate_cost(runs: Iterable[Run], time_limit_min: float, gpus_per_node: int) -> Cost:
    """Estimate the cost of the runs that need GPUs. Other runs are left out.

    A run counts with its time limit at most, plus the time for its trace. It holds all GPUs of its nodes, because
    nothing else may disturb its measurements.

    `gpus_per_node`: number of GPUs of a node. 0 if unknown: the largest number that any run uses on a node is assumed.
    """
    wall_h = node_gpu_h = 0.0
    unknown = 0
    on_gpus = [run for run in runs if run.parameters.device == "cuda"]
    held_per_node = gpus_per_node or max((run.parameters.devices_per_node for run in on_gpus), default=0)
    for run in on_gpus:
        p = run.parameters
        durations_s = run.program.resources(p, run.inputs).durations_s
        if durations_s is None:
            unknown += 1
            continue
        run_s = min(60.0 * time_limit_min, START_S + sum(durations_s.values()))
        trace_s = TRACE_S if p.profiler != "none" else 0.0
        hours = (run_s + trace_s) / 3600
        wall_h += hours
        node_gpu_h += p.nodes * held_per_node * hours
    return Cost(wall_h, node_gpu_h, unknown)
