"""Reports whether other processes disturbed a run or its GPUs were slowed down, from the conditions in run.json."""

import math
from collections.abc import Callable, Iterable, Iterator

from multicard.core.units import number
from multicard.runs.record import CpuUse, GpuConditions, GpuState, NodeConditions, RankRecord, RunRecord

# A run counts as disturbed if others use more CPUs of a node than both of these, on average. The services of a large
# node use more than 0.1 CPUs, and find an idle one.
OTHERS_CPUS = 0.1
# Share of the CPUs that the run may use.
OTHERS_SHARE = 0.01
# Standard errors of the sampled time by which others use CPU at least.
SURE = 3
# Tick of the kernel's clock, at which it samples what a CPU is doing.
TICK_S = 0.01

# Clock reasons of a GPU that runs below the clocks that it would reach by itself. A power cap is one only where the
# limit was lowered: at its own limit a GPU under full load runs as it is built to.
POWER = "sw_power_cap"
SLOWDOWNS = {
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "thermal",
    "hw_power_brake_slowdown": "power brake",
    "board_limit": "board limit",
    "reliability": "reliability",
}


def disturbance(conditions: Iterable[NodeConditions | None], ranks: Iterable[RankRecord]) -> str | None:
    """Return what disturbed or throttled a run, in words; None where nothing did, or nothing is known.

    A run is disturbed if other processes or the hypervisor took CPU time from it on one of its nodes, beyond the limits
    above, while its measured steps ran; where only the whole run was sampled, while it ran. A GPU is throttled for one
    of the reasons above. Each cause is followed by a colon and details; "; " separates them.
    """
    nodes = [node for node in conditions if node is not None]
    by_processes = max((_cpus_taken(node, lambda use: use.others_cpu_s) for node in nodes), default=0.0)
    by_hypervisor = max((_cpus_taken(node, lambda use: use.stolen_cpu_s) for node in nodes), default=0.0)
    reasons = [
        f"{source}: {_count_of_cpus(cpus)}"
        for source, cpus in (("other processes", by_processes), ("hypervisor", by_hypervisor))
        if cpus
    ]
    return "; ".join([*reasons, *_throttled(ranks)]) or None


def disturbance_of(record: RunRecord) -> str | None:
    """Return what disturbed or throttled a run; see `disturbance`."""
    return disturbance(record.conditions, record.ranks)


def _count_of_cpus(count: float) -> str:
    text = number(count, 2)
    return f"{text} {'CPU' if text == '1' else 'CPUs'}"


def _cpus_taken(node: NodeConditions, taken_s: Callable[[CpuUse], float | None]) -> float:
    """Return how many CPUs of a node were taken while measured steps ran, else during the whole run; 0 if too few.

    At each tick of the kernel's clock a CPU counts as busy or not, for the time since the last: of n ticks the number
    of busy ones has a standard error of at most half the root of n.
    """
    span = node.measured_steps or node
    spent_s, wall_s, cpus = taken_s(span), span.wall_s, node.usable_cpus or 0
    if spent_s is None or not wall_s:
        return 0.0
    standard_error = 0.5 * math.sqrt(cpus * TICK_S / wall_s)
    limit = max(OTHERS_CPUS, OTHERS_SHARE * cpus, SURE * standard_error)
    taken = spent_s / wall_s
    return taken if taken > limit else 0.0


def _throttled(ranks: Iterable[RankRecord]) -> list[str]:
    """Return a line for each cause that slowed a GPU down, with the first rank that it was seen on."""
    lines: dict[str, str] = {}
    for rank in ranks:
        for gpu in rank.gpu_conditions or ():
            for cause in _causes(gpu) if gpu is not None else ():
                lines.setdefault(cause, f"GPU throttled ({cause}): seen on rank {rank.rank}")
    return list(lines.values())


def _causes(gpu: GpuConditions) -> Iterator[str]:
    """Yield why a GPU ran below the clocks that it would reach by itself."""
    state = gpu.after or gpu.before or GpuState()
    limit_w, default_w = state.power_limit_w, state.default_power_limit_w
    for reason in gpu.clock_reasons or ():
        if reason in SLOWDOWNS:
            yield SLOWDOWNS[reason]
        elif reason == POWER and limit_w is not None and default_w is not None and limit_w < default_w:
            yield f"power limit of {limit_w:.0f} W instead of {default_w:.0f} W"
