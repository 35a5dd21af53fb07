"""Python and the packages that numbers depend on."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import multicard
from multicard.experiment.machine import torchtune_unsupported_reason
from multicard.machine.checks import Check

LOCK = Path(multicard.__file__).parents[2] / "envs" / "requirements.lock"
# The numbers of an experiment depend on these.
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "torchdata", "nvidia-dali-cuda130")


def checks(facts: dict[str, Any], lock: Path = LOCK) -> list[Check]:
    """Look at the Python and the packages that this process runs with; `facts` as in `multicard.machine.gpus`."""
    found = [Check("Python", platform.python_version()), _torch(facts), _against_lock(lock)]
    found += [_nccl(facts)] if "torch" in facts else []
    if problem := torchtune_unsupported_reason():
        found.append(Check("torchtune", problem, "warning", "only language models (workload: llm) need it"))
    return found


def _torch(facts: dict[str, Any]) -> Check:
    if "torch" not in facts:
        problem = f"cannot be imported: {facts.get('torch_problem', 'not asked')}"
        return Check("torch", problem, "error", "reinstall the environment: docs/software.md")
    cuda = facts.get("cuda")
    return Check("torch", f"{facts['torch']}, built for {f'CUDA {cuda}' if cuda else 'CPUs only'}")


def _against_lock(lock: Path) -> Check:
    try:
        pins = dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\\n]+)", lock.read_text(encoding="utf-8"), re.M))
    except (OSError, UnicodeDecodeError):
        return Check("packages", "not compared: this installation has no lock file")
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue  # reported where it is needed
    if differing := [f"{name} {has} (lock: {pins[name]})" for name, has in found.items() if pins.get(name, has) != has]:
        do = "envs/make-venv.sh makes an environment as it was tested"
        return Check("packages", ", ".join(differing), "warning", do)
    return Check("packages", f"match the lock file: {', '.join(' '.join(each) for each in found.items())}")


def _nccl(facts: dict[str, Any]) -> Check:
    if not facts.get("distributed"):
        return Check("NCCL", "this torch has no torch.distributed", "error", "install a build that has it")
    if facts.get("distributed_nccl"):
        return Check("NCCL", f"{facts.get('nccl', 'unknown version')}, in torch.distributed")
    do = "runs on several GPUs need a CUDA build of torch"
    return Check("NCCL", "this torch has none", "error" if facts.get("gpus") else "warning", do)
