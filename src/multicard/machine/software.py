"""Python, PyTorch and torchtune, as this process has them."""

import platform
from typing import Any

from multicard.experiment.machine import torchtune_unsupported_reason
from multicard.machine.checks import Check


def checks(facts: dict[str, Any]) -> list[Check]:
    """Look at the Python and the packages that this process runs with; `facts` as in `multicard.machine.gpus`."""
    found = [Check("Python", platform.python_version())]
    if "torch" in facts:
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
