"""About how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable
from typing import NamedTuple

from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS

# Assumed, of every run: starting the profiler, the processes, their libraries and the process group; and after it
# ending them, writing the trace, exporting it and reading it.
START_S = 30.0
TRACE_S = 30.0


class Cost(NamedTuple):
    """What runs on GPUs cost, one after another."""

    wall_h: float  # from the start of the first run to the end of the last
    node_gpu_h: float  # of all GPUs of the nodes that the runs hold, whether they use them or not
    unknown: int  # runs whose amount of work is not known; nothing else counts them


def estimate_cost(runs: Iterable[Run], time_limit_min: float, gpus_per_node: int) -> Cost:
    """Estimate the cost of the runs that need GPUs; none takes longer than its time limit and its trace.

    `gpus_per_node` is what a node has, or 0 where that is not known: then as many as the largest run uses of one. A run
    has whole nodes to itself, so that nothing disturbs what it measures.
    """
    wall_h = node_gpu_h = 0.0
    unknown = 0
    on_gpus = [run for run in runs if run.parameters.device == "cuda"]
    held = gpus_per_node or max((run.parameters.devices_per_node for run in on_gpus), default=0)
    for run in on_gpus:
        p = run.parameters
        own = WORKLOADS[p.workload].resources(p, run.inputs).durations_s
        if own is None:
            unknown += 1
            continue
        trace_s = TRACE_S if p.profiler != "none" else 0.0
        hours = (min(60.0 * time_limit_min, START_S + sum(own.values())) + trace_s) / 3600
        wall_h += hours
        node_gpu_h += p.nodes * held * hours
    return Cost(wall_h, node_gpu_h, unknown)
