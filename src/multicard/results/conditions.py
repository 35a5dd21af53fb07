"""Report from the conditions in run.json whether other processes disturbed a run, or its GPUs were slowed down."""

import math
from collections.abc import Callable, Iterable, Iterator

from multicard.core.units import number
from multicard.runs.record import CpuUse, GpuConditions, GpuState, NodeConditions, RankRecord, RunRecord

# A run counts as disturbed if other processes, or the hypervisor, take more CPUs of a node on average than each of the
# three limits: OTHERS_CPUS, OTHERS_SHARE × the number of CPUs that the run may use, and SURE × the standard error of
# the measurement. The second limit is for large nodes. Their services take more than 0.1 CPUs, but run on CPUs that
# would be idle.
OTHERS_CPUS = 0.1
OTHERS_SHARE = 0.01
SURE = 3
# Seconds between two ticks of the kernel's clock. At each tick the kernel notes what a CPU is doing.
TICK_S = 0.01

# The causes that take CPUs from a run, in the words of `disturbance`.
PROCESSES, HYPERVISOR = "other processes", "hypervisor"

# Clock reasons of a GPU whose clocks are lower than they could be. A power cap is such a reason only if the power limit
# was lowered: a GPU under full load normally reaches its default limit.
POWER = "sw_power_cap"
SLOWDOWNS = {
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "thermal",
    "hw_power_brake_slowdown": "power brake",
    "board_limit": "board limit",
    "reliability": "reliability",
}


def disturbance(conditions: Iterable[NodeConditions | None], ranks: Iterable[RankRecord]) -> str | None:
    """Return what disturbed a run or throttled its GPUs, in words; None if nothing did, or nothing is known.

    A run is disturbed if other processes or the hypervisor took more CPU time on one of its nodes than the limits above
    allow. The time of the measured steps counts, or that of the whole run if there are no samples for these steps. The
    number of CPUs is that of the node with most. A GPU is throttled for one of the reasons above.

    Causes are separated by "; ". Each is followed by a colon and details, for example
    "other processes: 1.5 CPUs; GPU throttled (thermal): seen on rank 0".
    """
    nodes = [node for node in conditions if node is not None]
    by_processes = max((_cpus_taken(node, lambda use: use.others_cpu_s) for node in nodes), default=0.0)
    by_hypervisor = max((_cpus_taken(node, lambda use: use.stolen_cpu_s) for node in nodes), default=0.0)
    reasons = [
        f"{source}: {_count_of_cpus(cpus)}"
        for source, cpus in ((PROCESSES, by_processes), (HYPERVISOR, by_hypervisor))
        if cpus
    ]
    return "; ".join([*reasons, *_throttled(ranks)]) or None


def disturbance_of(record: RunRecord) -> str | None:
    """Return what disturbed a run or throttled its GPUs, by its record; see `disturbance`."""
    return disturbance(record.conditions, record.ranks)


def taken_cpus(disturbance: str) -> str | None:
    """Return the first cause in the words of `disturbance` that took CPUs from a run; None if none did.

    >>> taken_cpus("hypervisor: 1.5 CPUs; GPU throttled (thermal): seen on rank 0"), taken_cpus("")
    ('hypervisor: 1.5 CPUs', None)
    """
    return next((cause for cause in disturbance.split("; ") if cause.startswith((PROCESSES, HYPERVISOR))), None)


def _count_of_cpus(count: float) -> str:
    text = number(count, 2)
    return f"{text} {'CPU' if text == '1' else 'CPUs'}"


def _cpus_taken(node: NodeConditions, taken_s: Callable[[CpuUse], float | None]) -> float:
    """Return how many CPUs of a node were taken on average; 0 if that is within the limits above, or unknown.

    The average is over the measured steps, or over the whole run if there are no samples for these steps. `taken_s`:
    returns the seconds of CPU time that were taken in a span of time.

    At each tick of its clock the kernel notes whether a CPU is busy, and counts the time since the tick before like
    this. Among n ticks, the number of busy ones has a standard error of at most √n / 2.
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
    """Return a line for each cause that slowed a GPU down, with the first rank that it was seen on.

    A cause that was seen on several ranks has one line.
    """
    lines: dict[str, str] = {}
    for rank in ranks:
        for gpu in rank.gpu_conditions or ():
            for cause in _causes(gpu) if gpu is not None else ():
                lines.setdefault(cause, f"GPU throttled ({cause}): seen on rank {rank.rank}")
    return list(lines.values())


def _causes(gpu: GpuConditions) -> Iterator[str]:
    """Yield each reason, in words, for which the clocks of a GPU were lower than they could be."""
    state = gpu.after or gpu.before or GpuState()
    limit_w, default_w = state.power_limit_w, state.default_power_limit_w
    for reason in gpu.clock_reasons or ():
        if reason in SLOWDOWNS:
            yield SLOWDOWNS[reason]
        elif reason == POWER and limit_w is not None and default_w is not None and limit_w < default_w:
            yield f"power limit of {limit_w:.0f} W instead of {default_w:.0f} W"
