"""PyTorch: its packages, whether it can use the GPUs that runs are planned for, and an all-reduce between them."""

import importlib.util
import platform
from typing import Any

from multicard.experiment.machine import Machine, torchtune_unsupported_reason
from multicard.machine import Check
from multicard.machine.all_reduce import exchange

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
    """Look at the packages that this process runs with, and at its GPUs, between which an all-reduce is tried.

    `facts`: as `multicard.machine.probe.facts_here` gives them; `machine`: this machine, as runs are planned for it, by
    `nvidia-smi`.
    """
    return [*_software(facts), _gpus(facts, machine), *all_reduce(facts)]


def _software(facts: dict[str, Any]) -> list[Check]:
    found = [Check("Python", platform.python_version())]
    if importlib.util.find_spec("torch") is None:
        do = 'a script\'s own is used; for the workloads vision and llm: pip install "multicard[vision,llm]"'
        found.append(Check("torch", "not installed here", "warning", do))
    elif "torch" in facts:
        cuda = facts.get("cuda")
        built = f"{facts['torch']}, built for {f'CUDA {cuda}' if cuda else 'CPUs only'}"
        found += [Check("torch", built), _nccl(facts)]
    else:
        problem = f"cannot be imported: {facts.get('torch_problem', 'not asked')}"
        found.append(Check("torch", problem, "error", "reinstall the environment: docs/cluster.md"))
    if problem := torchtune_unsupported_reason():
        found.append(Check("torchtune", problem, "warning", "only language models (workload: llm) need it"))
    return found


def _nccl(facts: dict[str, Any]) -> Check:
    if not facts.get("distributed"):
        return Check("NCCL", "this torch has no torch.distributed", "error", "install a build that has it")
    if facts.get("distributed_nccl"):
        return Check("NCCL", f"{facts.get('nccl', 'unknown version')}, in torch.distributed")
    do = "runs on several GPUs need a CUDA build of torch"
    return Check("NCCL", "this torch has none", "error" if facts.get("gpus") else "warning", do)


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
