"""The GPUs: whether PyTorch can use those that runs are planned for, and an all-reduce between them."""

from typing import Any

from multicard.experiment.machine import Machine
from multicard.machine.all_reduce import exchange
from multicard.machine.checks import Check

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
    """Compare the GPUs that PyTorch sees with those that runs are planned for, and try an all-reduce between them.

    Parameters
    ----------
    facts
        As `multicard.machine.probe.facts_here` gives them.
    machine
        This machine, as runs are planned for it, by `nvidia-smi`.
    """
    return [_gpus(facts, machine), *all_reduce(facts)]


def _gpus(facts: dict[str, Any], machine: Machine) -> Check:
    seen, hidden = facts.get("gpus") or [], machine.hidden_gpus
    why = hidden or machine.unanswered
    if problem := facts.get("gpus_problem") or facts.get("started_problem") or facts.get("unanswered"):
        do = "a newer driver, or a torch built for its CUDA; dmesg | grep Xid shows faults of a GPU"
        return Check("GPUs", problem, "error", do)
    if not seen and not machine.gpus and not why:
        return Check("GPUs", "none found", "warning", "runs on cuda need a GPU; those on cpu do not")
    if not seen:
        if facts.get("cuda") is None and "torch" in facts:
            why = "it is built for CPUs only"
        why = why or facts.get("cuda_init_problem")
        do = "a torch built for CUDA, a newer driver, or a node with GPUs"
        return Check("GPUs", f"torch sees none{f': {why}' if why else ''}", "error", do)
    names = [name for name, *_ in seen]
    smallest = min(memory for _, memory, *_ in seen) / 1024**3
    found = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    found += f", the smallest with {smallest:.1f} GiB"
    if len(seen) != machine.gpus:
        found += f"; runs are planned for {machine.gpus}, as nvidia-smi lists{f' ({why})' if why else ''}"
        do = "nvidia-smi must list the GPUs that CUDA opens: reinstall the driver; dmesg | grep Xid"
        return Check("GPUs", found, "error", do)
    return Check("GPUs", found, "warning", hidden) if hidden else Check("GPUs", found)


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
