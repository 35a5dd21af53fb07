"""Whether the machine was the run's alone and ran at its own speed, from what run.json holds of its conditions."""

import math
from collections.abc import Mapping
from typing import Any

from multicard.core.units import number

# What others use on average of a node's CPUs, above both of which a run counts as disturbed: the services of a large
# node use more than 0.1 of one, and find an idle one.
OTHERS_CPUS = 0.1
OTHERS_SHARE = 0.01  # of those that the run may use
SURE = 3
TICK_S = 0.01  # of the kernel's clock, by which it samples what a CPU is doing

# Clock reasons that tell of a GPU below the clocks that it would reach by itself. Power does only where the limit was
# lowered: at its own limit a GPU under full load runs as it is built to.
POWER = "sw_power_cap"
SLOWDOWNS = {
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "thermal",
    "hw_power_brake_slowdown": "power brake",
    "board_limit": "board limit",
    "reliability": "reliability",
}


def disturbance(record: Mapping[str, Any]) -> str | None:
    """In words, what disturbed or throttled a run; None where nothing did, or nothing is known.

    While measured steps ran (from start to end where only that is known), on one of its nodes other processes or the
    hypervisor took CPU beyond the limits above, by more than `SURE` standard errors of a time that is sampled at
    ticks; or one of its GPUs was slowed down.
    Each reason is a kind, a colon and how much; "; " separates them.
    """
    return "; ".join([*_by_others(record), *_throttled(record)]) or None


def _by_others(record: Mapping[str, Any]) -> list[str]:
    found = []
    for kind, name in (("other processes", "others_cpu_s"), ("hypervisor", "stolen_cpu_s")):
        used = [_cpus_used(host, name) for host in record.get("conditions") or [] if host]
        if worst := max(used, default=0.0):
            cpus = number(worst, 2)
            found.append(f"{kind}: {cpus} {'CPU' if cpus == '1' else 'CPUs'}")
    return found


def _cpus_used(host: Mapping[str, Any], name: str) -> float:
    """CPUs of a node that others used while measured steps ran, else during the whole run; 0 for what is undisturbed.

    At each tick of the kernel's clock a CPU counts as busy or not, for the time since the last: of n ticks the number
    of busy ones has a standard error of at most half the root of n.
    """
    watched = host.get("measured_steps") or host
    spent, wall_s, cpus = _number(watched.get(name)), _number(watched.get("wall_s")), _number(host.get("usable_cpus"))
    if spent is None or not wall_s:
        return 0.0
    error = 0.5 * math.sqrt((cpus or 0) * TICK_S / wall_s)
    limit = max(OTHERS_CPUS, OTHERS_SHARE * (cpus or 0), SURE * error)
    return spent / wall_s if spent / wall_s > limit else 0.0


def _throttled(record: Mapping[str, Any]) -> list[str]:
    found = {}
    ranks = record.get("ranks") or []
    for rank, gpu in ((own.get("rank"), gpu) for own in ranks for gpu in own.get("gpu_conditions") or [] if gpu):
        state = gpu.get("after") or gpu.get("before") or {}
        limit, default = (_number(state.get(name)) for name in ("power_limit_w", "default_power_limit_w"))
        causes = dict(SLOWDOWNS)
        if limit is not None and default is not None and limit < default:
            causes[POWER] = f"power limit of {limit:.0f} W instead of {default:.0f} W"
        for cause in (causes[reason] for reason in gpu.get("clock_reasons") or [] if reason in causes):
            found.setdefault(cause, f"GPU throttled ({cause}): seen on rank {rank}")
    return list(found.values())


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
