"""Whether the machine was the run's alone and ran at its own speed, from what run.json holds of its conditions."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from multicard.core.units import number, percent

# What others use on average of a node's CPUs, above both of which a run counts as disturbed: the services of a large
# node use more than 0.1 of one, and find an idle one.
OTHERS_CPUS = 0.1
OTHERS_SHARE = 0.01  # of those that the run may use
SURE = 3
TICK_S = 0.01  # of the kernel's clock, by which it samples what a CPU is doing
THROTTLED_SHARE = 0.01  # of the measured time, likewise

# Policies that hold a GPU below the clocks that it would reach by itself. Power does only where the limit was lowered:
# at its own limit a GPU under full load runs as it is built to.
HOLDING_BACK = {"thermal": "thermal", "board_limit": "board limit", "reliability": "reliability"}
# Clock reasons of one reading that tell the same.
SLOWDOWNS = {
    "sw_thermal_slowdown": "thermal",
    "hw_thermal_slowdown": "thermal",
    "hw_power_brake_slowdown": "power brake",
}


def disturbance(record: Mapping[str, Any]) -> str | None:
    """In words, what disturbed or throttled a run; None where nothing did, or nothing is known.

    A run counts as disturbed if on one of its nodes, while measured steps ran (from the start of the run to its end
    where only that is known, as without a warm-up),

    - other processes took more than `OTHERS_CPUS` of a CPU and `OTHERS_SHARE` of the usable CPUs on average:
      `others_cpu_s` / `wall_s` (see `multicard.launch.cpu_samples.host_record`), or the hypervisor did:
      `stolen_cpu_s` / `wall_s`; and by more than `SURE` standard errors of a time that is sampled at the ticks of the
      kernel's clock;

    or if one of its GPUs, while measured steps ran,

    - was held below its clocks for more than `THROTTLED_SHARE` of the time by heat, a board limit or reliability, or
      by power at a limit that was lowered below the GPU's default: `held_back_s` / `watched_s`;
    - was found slowed down by heat or a power brake.

    Each reason is a kind, a colon and how much; "; " separates them.
    """
    return "; ".join([*_by_others(record), *_throttled(record)]) or None


def deviation(record: Mapping[str, Any]) -> str | None:
    """How a run was executed otherwise than its parameters say, in words; None where it was not."""
    ranks = record.get("ranks") or []
    hits = {hit["limit"]: hit["value"] for rank in ranks for hit in rank.get("compile_limits_hit") or []}
    if not hits:
        return None
    limits = ", ".join(f"{limit} ({value})" for limit, value in hits.items())
    return f"compiled in part only: torch.compile hit its {limits}, and runs the rest uncompiled"


def _by_others(record: Mapping[str, Any]) -> list[str]:
    found = []
    for kind, name in (("other processes", "others_cpu_s"), ("hypervisor", "stolen_cpu_s")):
        used = ((_per_second(host, name), _most_of_others(host)) for host in _hosts(record))
        worst = _most(cpus for cpus, limit in used if cpus is not None and cpus > limit)
        if worst is not None:
            cpus = number(worst, 2)
            found.append(f"{kind}: {cpus} {'CPU' if cpus == '1' else 'CPUs'}")
    return found


def _most_of_others(host: Mapping[str, Any]) -> float:
    """CPUs of a node that others may use of a run that counts as undisturbed.

    At each tick of the kernel's clock a CPU counts as busy or not, for the time since the last: of n ticks the number
    of busy ones has a standard error of at most half the root of n.
    """
    cpus, wall_s = _number(host.get("usable_cpus")) or 0, _number(_watched(host).get("wall_s")) or 0
    error = 0.5 * math.sqrt(cpus * TICK_S / wall_s) if wall_s else 0
    return max(OTHERS_CPUS, OTHERS_SHARE * cpus, SURE * error)


def _throttled(record: Mapping[str, Any]) -> list[str]:
    found = {}
    for rank, gpu in _gpus(record):
        state = gpu.get("after") or gpu.get("before") or {}
        limit, default = (_number(state.get(name)) for name in ("power_limit_w", "default_power_limit_w"))
        causes = dict(HOLDING_BACK)
        if limit is not None and default is not None and limit < default:
            causes["power"] = f"power limit of {limit:.0f} W instead of {default:.0f} W"
        for policy, cause in causes.items():
            share = _held_back(gpu, (policy,))
            if share is not None and share > THROTTLED_SHARE:
                found.setdefault(
                    cause, f"GPU throttled ({cause}): {percent(share)} of the measured time on rank {rank}"
                )
        for reason in gpu.get("clock_reasons") or []:
            if reason in SLOWDOWNS:
                cause = SLOWDOWNS[reason]
                found.setdefault(cause, f"GPU throttled ({cause}): seen on rank {rank}")
    return list(found.values())


def _held_back(gpu: Mapping[str, Any], policies: Iterable[str]) -> float | None:
    """Largest share of the measured time in which one of the policies held back the clocks."""
    watched, counted = _number(gpu.get("watched_s")), gpu.get("held_back_s") or {}
    if not watched:
        return None
    spent = _most(_number(counted.get(policy)) for policy in policies)
    return None if spent is None else spent / watched


def _hosts(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [host for host in record.get("conditions") or [] if host]


def _gpus(record: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Conditions of every GPU with the number of its rank."""
    ranks = record.get("ranks") or []
    return [(rank.get("rank"), gpu) for rank in ranks for gpu in rank.get("gpu_conditions") or [] if gpu]


def _watched(host: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of others while measured steps ran, else during the whole run."""
    return host.get("measured_steps") or host


def _per_second(host: Mapping[str, Any], name: str) -> float | None:
    spent, wall = _number(_watched(host).get(name)), _number(_watched(host).get("wall_s"))
    return spent / wall if spent is not None and wall else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
