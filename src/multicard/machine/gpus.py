"""Check PyTorch: its packages, the GPUs that it sees, and an all-reduce between them."""

import importlib.util
import platform
from collections.abc import Sequence

from multicard.core.system import version_of
from multicard.machine import Check
from multicard.machine.all_reduce import exchange
from multicard.machine.probe import TorchFacts, TorchGpu
from multicard.programs.machine import Machine, torchtune_unsupported_reason, trl_unsupported_reason

# Time limit of an all-reduce in seconds. It starts when the processes have connected, so importing PyTorch does not
# count.
LIMIT_S = 60.0
# Size of the message. The gradients of a model may be as large, and latency hardly matters at this size.
MESSAGE_BYTES = 128 << 20
P2P = (
    "direct access between GPUs (peer-to-peer) is at fault: disable ACS of the PCIe bridges and the IOMMU in the BIOS, "
    "or export NCCL_P2P_DISABLE=1 (slower)"
)
NCCL_HELP = (
    "NCCL_DEBUG=INFO shows which way NCCL takes; try NCCL_SHM_DISABLE=1 (too small a /dev/shm), NCCL_IB_DISABLE=1, "
    'NCCL_SOCKET_IFNAME; see dmesg for Xid and NVIDIA\'s page "NCCL troubleshooting"'
)

# The first and the last version of NCCL that NVIDIA's Resiliency Extension (NVRx) advises against.
ADVISED_AGAINST = ((2, 28, 3), (2, 28, 8))


def checks(facts: TorchFacts, machine: Machine) -> list[Check]:
    """Check the packages of this process's Python and the GPUs that PyTorch sees, and try an all-reduce between these.

    `facts`: from `multicard.machine.probe.facts_here`. `machine`: this machine as `Machine.here` describes it, for
    which runs are planned; its GPUs are those that nvidia-smi lists.
    """
    return [*_software(facts), _gpus(facts, machine), *_all_reduce(facts)]


def _software(facts: TorchFacts) -> list[Check]:
    software = [Check("Python", platform.python_version()), *_torch(facts)]
    if problem := trl_unsupported_reason():
        software.append(Check("TRL", problem, "warning", "only language models (workload: llm) need it"))
    if problem := torchtune_unsupported_reason():
        software.append(Check("torchtune", problem, "warning", "only runs with library: torchtune need it"))
    return software


def _torch(facts: TorchFacts) -> list[Check]:
    if importlib.util.find_spec("torch") is None:
        do = 'a script\'s own is used; for the workloads vision and llm: pip install "multicard[vision,llm]"'
        return [Check("torch", "not installed here", "warning", do)]
    if facts.torch is None:
        problem = f"cannot be imported: {facts.torch_problem}"
        return [Check("torch", problem, "error", "reinstall the environment: docs/cluster.md")]
    built_for = f"CUDA {facts.cuda}" if facts.cuda else "CPUs only"
    return [Check("torch", f"{facts.torch}, built for {built_for}"), _nccl(facts)]


def _nccl(facts: TorchFacts) -> Check:
    if not facts.has_distributed:
        return Check("NCCL", "this torch has no torch.distributed", "error", "install a build that has it")
    if facts.has_nccl:
        first, last = ADVISED_AGAINST
        if first <= (version_of(facts.nccl or "") or ())[:3] <= last:
            problem = f"{facts.nccl}: NVIDIA's Resiliency Extension advises against NCCL 2.28.3 to 2.28.8"
            return Check("NCCL", problem, "warning", "install 2.28.9 or later, or another version of torch")
        return Check("NCCL", f"{facts.nccl or 'unknown version'}, in torch.distributed")
    do = "runs on several GPUs need a CUDA build of torch"
    return Check("NCCL", "this torch has none", "error" if facts.gpus else "warning", do)


def _gpus(facts: TorchFacts, machine: Machine) -> Check:
    """Compare the GPUs that torch sees with those that nvidia-smi lists, for which runs are planned."""
    gpus = facts.gpus
    why_fewer = machine.hidden_gpus or machine.unanswered
    problem = facts.gpus_problem or facts.compute_problem or facts.unanswered
    if problem:
        do = "a newer driver, or a torch built for its CUDA; dmesg | grep Xid shows faults of a GPU"
        return Check("GPUs", problem, "error", do)
    if not gpus and not machine.gpus and not why_fewer:
        return Check("GPUs", "none found", "warning", "runs on cuda need a GPU; those on cpu do not")
    if not gpus:
        return _unseen_gpus(facts, why_fewer)
    listed = _listed(gpus)
    if len(gpus) != machine.gpus:
        because = f" ({why_fewer})" if why_fewer else ""
        difference = f"{listed}; runs are planned for {machine.gpus}, as nvidia-smi lists{because}"
        do = "nvidia-smi must list the GPUs that CUDA opens: reinstall the driver; dmesg | grep Xid"
        return Check("GPUs", difference, "error", do)
    if machine.hidden_gpus:
        return Check("GPUs", listed, "warning", machine.hidden_gpus)
    return Check("GPUs", listed)


def _unseen_gpus(facts: TorchFacts, why: str | None) -> Check:
    """Report that the machine has GPUs but torch sees none; `why`: the reason if `Machine` has one, else None."""
    if facts.cuda is None and facts.torch is not None:
        why = "it is built for CPUs only"
    why = why or facts.cuda_problem
    do = "a torch built for CUDA, a newer driver, or a node with GPUs"
    return Check("GPUs", f"torch sees none{f': {why}' if why else ''}", "error", do)


def _listed(gpus: Sequence[TorchGpu]) -> str:
    names = [gpu.name for gpu in gpus]
    counts = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    smallest_gib = min(gpu.memory_bytes for gpu in gpus) / 1024**3
    return f"{counts}, the smallest with {smallest_gib:.1f} GiB"


def _all_reduce(facts: TorchFacts) -> list[Check]:
    """Try an all-reduce between all GPUs that PyTorch sees.

    There is no check if it sees fewer than two GPUs, if it could not compute on the first, or if it has no NCCL.
    """
    ranks = len(facts.gpus)
    if ranks < 2 or not facts.can_compute or not facts.has_nccl:
        return []
    result = exchange("cuda", ranks, [MESSAGE_BYTES], LIMIT_S)
    if result.problem is None:
        return [Check("all-reduce", result.words())]
    # If an all-reduce works without peer-to-peer access, then peer-to-peer access is the fault.
    without_p2p = exchange("cuda", ranks, [MESSAGE_BYTES], LIMIT_S, {"NCCL_P2P_DISABLE": "1"})
    results = f"{result.problem}; with NCCL_P2P_DISABLE=1: {without_p2p.problem or without_p2p.words()}"
    return [Check("all-reduce", results, "error", NCCL_HELP if without_p2p.problem else P2P)]
