"""The GPUs: their driver, whether PyTorch can use them, their clocks and memory, and an all-reduce between them."""

import os
from collections.abc import Callable
from typing import Any

from multicard.analysis.runs.conditions import SLOWDOWNS
from multicard.core.system import version_of
from multicard.experiment.machine import Machine
from multicard.machine.all_reduce import exchange
from multicard.machine.checks import Check

Gpu = dict[str, Any]  # as multicard.machine.probe.of_gpu describes it

# The first driver of each CUDA generation: docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility".
FIRST_DRIVER = {11: 450, 12: 525, 13: 580}
ABSENT = "NVMLError_LibraryNotFound"
# Reasons of a single reading without any load. Others tell how a GPU is set up, or that it is idle.
SLOWED = {**SLOWDOWNS, "hw_slowdown": "heat or power supply"}

LIMIT_S = 60.0  # of an all-reduce, from the first connection on; before, processes import PyTorch
MESSAGE_BYTES = 128 << 20  # of gradients, say: large enough that latency does not count
# Of PCIe 3.0 x16, in one direction (16 lanes of 8 GT/s, 128b/130b). A single NVLink has more.
PCIE3_BYTES_PER_S = 16 * 8e9 / 8 * 128 / 130
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
    problem, listed = facts.get("nvml_problem"), facts.get("nvml_gpus")
    if problem and ABSENT in problem and not facts.get("gpus"):
        return [Check("GPUs", "no NVIDIA driver", "warning", "runs on cuda need a GPU; those on cpu do not")]
    answering = [gpu for gpu in listed or [] if "problem" not in gpu]
    found = [_listed(listed or [], problem), _driver(facts)]
    found += [_seen_by_torch(listed, facts, machine)] if "torch" in facts else []
    found += [_clocks(answering), _memory_errors(answering)] if answering else []
    return [check for check in found if check is not None] + all_reduce(facts)


def _listed(listed: list[Gpu], problem: str | None) -> Check:
    if problem and "version mismatch" in problem:  # updated, and the module of the old driver is still in the kernel
        do = "restart the node, or reload the kernel module nvidia; in a container, use the libraries of the host"
        return Check("GPUs", f"the driver's libraries and its kernel module differ: {problem}", "error", do)
    if not listed:
        do = "reinstall the driver, or run this on a node with GPUs"
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


def _driver(facts: dict[str, Any]) -> Check | None:
    """Compare the newest CUDA that the driver supports with that of PyTorch."""
    driver, number, wanted = facts.get("driver"), facts.get("driver_cuda"), version_of(facts.get("cuda") or "")
    if driver is None or "torch" not in facts:
        return None
    if wanted is None:
        return Check("driver", f"{driver}, but torch is built for CPUs only", "error", "install a CUDA build of torch")
    needs = f"torch's CUDA {'.'.join(map(str, wanted))}"
    if not isinstance(number, int):
        return Check("driver", f"{driver}; cannot tell which CUDA it supports", "warning", f"it must support {needs}")
    cuda = number // 1000, number % 1000 // 10
    found = f"{driver} (CUDA {cuda[0]}.{cuda[1]})"
    if cuda >= wanted[:2]:
        return Check("driver", f"{found}, {needs}")
    if cuda[0] == wanted[0]:
        return Check("driver", f"{found} is older than {needs}", "warning", "the same generation: most features work")
    if facts.get("started"):
        do = "torch starts on it: through NVIDIA's cuda-compat?"
        return Check("driver", f"{found} is older than {needs}", "warning", do)
    do = f"a driver from {FIRST_DRIVER[wanted[0]]} on" if wanted[0] in FIRST_DRIVER else "a newer driver"
    return Check("driver", f"{found} is too old for {needs}", "error", f"{do}, or a torch built for its CUDA")


def _seen_by_torch(listed: list[Gpu] | None, facts: dict[str, Any], machine: Machine) -> Check:
    """Compare the GPUs that PyTorch sees with those that runs are planned for, by `nvidia-smi -L`."""
    name, seen, hidden = "GPUs in torch", facts.get("gpus"), machine.hidden_gpus
    problem = facts.get("gpus_problem") or facts.get("started_problem") or facts.get("unanswered")
    if problem:
        return Check(name, problem, "error", "see the driver above, and dmesg | grep Xid")
    if not seen:
        why = hidden or facts.get("cuda_init_problem")
        found = "torch sees no GPU" + (f": {why}" if why else "")
        return Check(name, found, "error" if listed or hidden else "warning", "run this on a node with GPUs")
    found = f"{len(seen)}, the smallest with {min(memory for _, memory, *_ in seen) / 1024**3:.1f} GiB"
    if len(seen) != machine.gpus:
        why = f" ({reason})" if (reason := hidden or machine.unanswered) else ""
        do = "nvidia-smi must list the GPUs that CUDA opens: reinstall the driver; dmesg | grep Xid"
        return Check(name, f"{found}; runs are planned for {machine.gpus}, as nvidia-smi lists{why}", "error", do)
    if hidden:
        return Check(name, f"{found}, of {len(listed or [])}", "warning", hidden)
    return Check(name, found)


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


# What is wrong with a GPU's memory, the worst first: NVIDIA, "GPU Memory Error Management" (docs.nvidia.com/deploy),
# and for GPUs before Ampere "Dynamic Page Retirement". Rows are those remapped after corrected and uncorrected errors,
# whether one waits, and whether one failed.
RESET = "reset it (nvidia-smi --gpu-reset) or restart the node"
MEMORY_FAULTS: tuple[tuple[Callable[[Gpu], bool], str, str, str], ...] = (
    (lambda gpu: _rows(gpu)[3] > 0, "a row of memory could not be remapped", "error", "have it replaced"),
    (
        lambda gpu: (gpu["uncorrected_now"] or 0) > 0,
        "uncorrected memory errors since the driver was loaded", "error", f"{RESET}; if they return, have it replaced",
    ),
    (
        lambda gpu: _rows(gpu)[2] > 0 or bool(gpu["pages_pending"]),
        "memory with errors waits for a reset to be replaced by spare memory", "error", RESET,
    ),
    (
        lambda gpu: (gpu["uncorrected_ever"] or 0) > 0,
        "uncorrected memory errors in its life", "warning", "if their number grows, have it replaced",
    ),
)  # fmt: skip


def _rows(gpu: Gpu) -> list[int]:
    return gpu["remapped_rows"] or [0, 0, 0, 0]


def _memory_errors(gpus: list[Gpu]) -> Check:
    name = "GPU memory errors"
    for applies, what, verdict, do in MEMORY_FAULTS:
        if faulty := [gpu for gpu in gpus if applies(gpu)]:
            counts = ("uncorrected_now", "uncorrected_ever", "remapped_rows")
            found = [f"GPU {gpu['index']}: {what} ({', '.join(f'{n} {gpu[n]}' for n in counts)})" for gpu in faulty]
            return Check(name, "; ".join(found), verdict, do)
    without = [str(gpu["index"]) for gpu in gpus if not gpu["ecc"]]
    return Check(name, f"not counted without ECC: GPU {', '.join(without)}" if without else "none uncorrected")


def all_reduce(facts: dict[str, Any]) -> list[Check]:
    """Try one on all GPUs that PyTorch sees; nothing where they are fewer than two or do not start."""
    ranks, gpus = len(facts.get("gpus") or []), facts.get("nvml_gpus") or [{}]
    if ranks < 2 or not facts.get("started") or not facts.get("distributed_nccl"):
        return []
    name, ended = "all-reduce", exchange("cuda", ranks, [MESSAGE_BYTES], LIMIT_S)
    if ended.problem is None:
        if ended.bus_bandwidth_bytes_per_s >= PCIE3_BYTES_PER_S or not all(gpu.get("nvlinks") for gpu in gpus):
            return [Check(name, ended.words())]
        found = f"{ended.words()}: less than PCIe 3.0 x16, though all GPUs have active NVLinks"
        return [Check(name, found, "warning", "NCCL_DEBUG=INFO shows why; nvidia-smi nvlink --status")]
    if "NCCL_P2P_DISABLE" in os.environ:
        return [Check(name, ended.problem, "error", NCCL_HELP)]
    again = exchange("cuda", ranks, [MESSAGE_BYTES], LIMIT_S, {"NCCL_P2P_DISABLE": "1"})
    found = f"{ended.problem}; with NCCL_P2P_DISABLE=1: {again.problem or again.words()}"
    return [Check(name, found, "error", NCCL_HELP if again.problem else P2P)]
