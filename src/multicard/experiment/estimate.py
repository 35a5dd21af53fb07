"""Estimate how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable
from dataclasses import dataclass

from multicard.experiment.runs import Run

# Assumed for every run: seconds to start the profiler, the processes, their libraries and the process group; and, of a
# profiled run, to end the processes and to write, export and read the trace.
START_S = 30.0
TRACE_S = 30.0


@dataclass(frozen=True)
class Cost:
    """The cost of runs on GPUs that run one after another."""

    wall_h: float  # hours between the start of the first run and the end of the last
    node_gpu_h: float  # hours times all GPUs of the nodes that the runs hold, whether they use them or not
    unknown: int  # number of runs whose amount of work is not known; the hours are without them


def estimate_cost(runs: Iterable[Run], time_limit_min: float, gpus_per_node: int) -> Cost:
    """Estimate the cost of the runs that need GPUs; none takes longer than its time limit and its trace.

    `gpus_per_node`: GPUs of a node; where it is 0, not known, a node is assumed to have as many as the largest run uses
    of one. A run has whole nodes to itself, so that nothing disturbs what it measures.
    """
    wall_h = node_gpu_h = 0.0
    unknown = 0
    on_gpus = [run for run in runs if run.parameters.device == "cuda"]
    held_per_node = gpus_per_node or max((run.parameters.devices_per_node for run in on_gpus), default=0)
    for run in on_gpus:
        p = run.parameters
        durations_s = run.workload.resources(p, run.inputs).durations_s
        if durations_s is None:
            unknown += 1
            continue
        run_s = min(60.0 * time_limit_min, START_S + sum(durations_s.values()))
        trace_s = TRACE_S if p.profiler != "none" else 0.0
        hours = (run_s + trace_s) / 3600
        wall_h += hours
        node_gpu_h += p.nodes * held_per_node * hours
    return Cost(wall_h, node_gpu_h, unknown)
