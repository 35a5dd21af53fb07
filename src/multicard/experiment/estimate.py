"""About how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS

# Assumed, of every run: starting the profiler, the processes, their libraries and the process group; and after it
# ending them, writing the trace, exporting it and reading it.
START_S = 30.0
TRACE_S = 30.0


@dataclass
class Cost:
    """What runs on GPUs cost, one after another."""

    wall_h: float = 0.0  # from the start of the first run to the end of the last
    gpu_h: float = 0.0  # of the GPUs that the runs use
    node_gpu_h: float = 0.0  # of all GPUs of the nodes that the runs hold, whether they use them or not
    parts_h: dict[str, float] = field(default_factory=dict)  # `wall_h` by kind of work
    waiting: int = 0  # runs whose loader is slower than their GPUs
    unknown: int = 0  # runs whose amount of work is not known; nothing else counts them


def estimate_cost(runs: Iterable[Run], time_limit_min: float, gpus_per_node: int) -> Cost:
    """Estimate the cost of the runs that need GPUs; none takes longer than its time limit and its trace.

    `gpus_per_node` is what a node has, or 0 where that is not known: then as many as the largest run uses of one. A run
    has whole nodes to itself, so that nothing disturbs what it measures.
    """
    cost = Cost()
    on_gpus = [run for run in runs if run.parameters.device == "cuda"]
    held = gpus_per_node or max((run.parameters.devices_per_node for run in on_gpus), default=0)
    for run in on_gpus:
        p = run.parameters
        work = WORKLOADS[p.workload]
        own = work.durations_s(p, run.inputs)
        if own is None:
            cost.unknown += 1
            continue
        limited = {"start-up": START_S} | own
        scale = min(1.0, 60.0 * time_limit_min / sum(limited.values()))
        parts = {name: scale * seconds for name, seconds in limited.items()}
        if p.profiler != "none":
            parts["traces"] = TRACE_S
        for name, seconds in parts.items():
            cost.parts_h[name] = cost.parts_h.get(name, 0.0) + seconds / 3600
        hours = sum(parts.values()) / 3600
        cost.wall_h += hours
        cost.gpu_h += p.devices * hours
        cost.node_gpu_h += p.nodes * held * hours
        cost.waiting += work.waits_for_loader(p, run.inputs)
    return cost
