"""The GPUs: their driver, whether PyTorch can use them, their clocks, and an all-reduce between them."""

from typing import Any

from multicard.analysis.runs.conditions import SLOWDOWNS
from multicard.experiment.machine import Machine
from multicard.machine.all_reduce import exchange
from multicard.machine.checks import Check

Gpu = dict[str, Any]  # as multicard.machine.probe.of_gpu describes it

ABSENT = "NVMLError_LibraryNotFound"
# Reasons of a single reading without any load. Others tell how a GPU is set up, or that it is idle.
SLOWED = {**SLOWDOWNS, "hw_slowdown": "heat or power supply"}

LIMIT_S = 60.0  # of an all-reduce, from the first connection on; before, processes import PyTorch
MESSAGE_BYTES = 128 << 20  # of gradients, say: large enough that latency does not count
P2P = (
    "direct access between GPUs (peer-to-peer) is at fault: disable ACS of the PCIe bridges and the IOMMU in the BIOS, "
    "or export NCCL_P2P_DISABLE=1 (slower)"
)
NCCL_HELP = (
    "NCCL_DEBUG=INFO shows which way NCCL takes; try NCCL_SHM_DISABLE=1 (too small a /dev/shm), NCCL_IB_DISABLE=1, "
    'NCCL_SOCKET_IFNAME; see dmesg for Xid and NVIDIA\'s page "NCCL troubleshooting"'
)


def checks(facts: dict[str, Any], machine: Machine) -> list[Check]:
    """Look at the driver, the GPUs, what PyTorch sees of them, and how they are.

    Parameters
    ----------
    facts
        As `multicard.machine.probe.facts_here` gives them.
    machine
        This machine, as runs are planned for it.
    """
    problem, listed = facts.get("nvml_problem"), facts.get("nvml_gpus") or []
    if problem and ABSENT in problem and not facts.get("gpus"):
        return [Check("GPUs", "no NVIDIA driver", "warning", "runs on cuda need a GPU; those on cpu do not")]
    found = [_listed(listed, problem)]
    if "torch" in facts:
        found += [_driver(facts), _seen_by_torch(facts, machine)]
    if answering := [gpu for gpu in listed if "problem" not in gpu]:
        found.append(_clocks(answering))
    return found + all_reduce(facts)


def _listed(listed: list[Gpu], problem: str | None) -> Check:
    if not listed:
        do = "restart the node or reinstall the driver, or run this on a node with GPUs"
        return Check("GPUs", "the driver lists none" + (f": {problem}" if problem else ""), "warning", do)
    names = [_named(gpu) for gpu in listed]
    found = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    if any("problem" in gpu for gpu in listed):
        return Check("GPUs", found, "error", "restart the node; the kernel's log has the reason (dmesg | grep Xid)")
    if any(gpu["partitioned"] for gpu in listed):
        do = "runs on several devices need whole GPUs (nvidia-smi --multi-instance-gpu 0)"
        return Check("GPUs", f"{found}; a process sees one instance, and NCCL connects none", "warning", do)
    return Check("GPUs", found)


def _named(gpu: Gpu) -> str:
    if "problem" in gpu:
        return f"GPU {gpu['index']} that does not answer ({gpu['problem']})"
    memory = "memory unknown" if gpu["memory_bytes"] is None else f"{gpu['memory_bytes'] / 1024**3:.0f} GiB"
    return f"{gpu['name']} ({memory}{', partitioned (MIG)' if gpu['partitioned'] else ''})"


def _driver(facts: dict[str, Any]) -> Check:
    """The driver and the newest CUDA that it supports; whether that is enough for PyTorch, starting on a GPU tells."""
    number, cuda = facts.get("driver_cuda"), facts.get("cuda")
    supports = f" (CUDA {number // 1000}.{number % 1000 // 10})" if isinstance(number, int) else ""
    found = f"{facts.get('driver') or 'unknown version'}{supports}"
    if cuda is None:
        return Check("driver", f"{found}, but torch is built for CPUs only", "error", "install one built for CUDA")
    return Check("driver", f"{found}, torch's CUDA {cuda}")


def _seen_by_torch(facts: dict[str, Any], machine: Machine) -> Check:
    """Compare the GPUs that PyTorch sees with those that runs are planned for, by `nvidia-smi -L`."""
    name, seen, hidden = "GPUs in torch", facts.get("gpus"), machine.hidden_gpus
    listed = facts.get("nvml_gpus") or []
    problem = facts.get("gpus_problem") or facts.get("started_problem") or facts.get("unanswered")
    if problem:
        return Check(name, problem, "error", "a newer driver, or a torch built for its CUDA; dmesg | grep Xid")
    if not seen:
        why = hidden or facts.get("cuda_init_problem")
        found = "torch sees no GPU" + (f": {why}" if why else "")
        return Check(name, found, "error" if listed or hidden else "warning", "run this on a node with GPUs")
    found = f"{len(seen)}, the smallest with {min(memory for _, memory, *_ in seen) / 1024**3:.1f} GiB"
    if len(seen) != machine.gpus:
        why = f" ({reason})" if (reason := hidden or machine.unanswered) else ""
        do = "nvidia-smi must list the GPUs that CUDA opens: reinstall the driver; dmesg | grep Xid"
        return Check(name, f"{found}; runs are planned for {machine.gpus}, as nvidia-smi lists{why}", "error", do)
    return Check(name, f"{found}, of {len(listed)}", "warning", hidden) if hidden else Check(name, found)


def _clocks(gpus: list[Gpu]) -> Check:
    """Whether anything holds the clocks of a GPU back though nothing runs on it; a lowered limit will under load."""
    slowed = []
    for gpu in gpus:
        state = gpu["conditions"] or {}
        limit, default = state.get("power_limit_w"), state.get("default_power_limit_w")
        reasons = [reason for reason in state.get("clock_reasons") or [] if reason in SLOWED]
        why = [f"slowed down by {SLOWED[reason]} ({reason})" for reason in reasons]
        if limit is not None and default is not None and limit < default:
            why.append(f"power limit {limit:.0f} W, by default {default:.0f} W")
        if why:
            slowed.append(f"GPU {gpu['index']}: {', '.join(why)}, {state.get('temperature_c')} °C")
    if slowed:
        do = "measure on another node, or have cooling, power supply and limits checked (nvidia-smi -q -d PERFORMANCE)"
        return Check("GPU clocks", "; ".join(slowed), "warning", do)
    return Check("GPU clocks", "none is held back by heat, power supply or a lowered power limit")


def all_reduce(facts: dict[str, Any]) -> list[Check]:
    """Try one on all GPUs that PyTorch sees; nothing where they are fewer than two or do not start."""
    ranks = len(facts.get("gpus") or [])
    if ranks < 2 or not facts.get("started") or not facts.get("distributed_nccl"):
        return []
    ended = exchange("cuda", ranks, [MESSAGE_BYTES], LIMIT_S)
    if ended.problem is None:
        return [Check("all-reduce", ended.words())]
    again = exchange("cuda", ranks, [MESSAGE_BYTES], LIMIT_S, {"NCCL_P2P_DISABLE": "1"})
    found = f"{ended.problem}; with NCCL_P2P_DISABLE=1: {again.problem or again.words()}"
    return [Check("all-reduce", found, "error", NCCL_HELP if again.problem else P2P)]
