"""Python and the packages."""

import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import Any

import multicard
from multicard.doctor.checks import Check
from multicard.experiment.machine import torchtune_unsupported_reason

LOCK = Path(multicard.__file__).parents[2] / "envs" / "requirements.lock"
# The numbers of an experiment depend on these.
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "torchdata", "nvidia-dali-cuda130")


def checks(facts: dict[str, Any], lock: Path = LOCK) -> list[Check]:
    """Look at the Python and the packages that this process runs with."""
    return [_python(), _torch(facts), _against_lock(lock), _tuning(), _dali(facts), _nccl(facts)]


def _python() -> Check:
    found = platform.python_version()
    try:
        wanted = metadata("multicard")["Requires-Python"] or ""
    except PackageNotFoundError:
        return Check(
            "Python", f"{found}; multicard is not installed as a package", "warning", "envs/make-venv.sh .venv"
        )
    bounds = [(sign, (int(a), int(b))) for sign, a, b in re.findall(r"(>=|<)\s*(\d+)\.(\d+)", wanted)]
    here = sys.version_info[:2]
    fits = all(here >= bound if sign == ">=" else here < bound for sign, bound in bounds)
    if fits:
        return Check("Python", found)
    return Check("Python", f"{found}, wanted {wanted}", "error", "envs/make-venv.sh .venv python3.12")


def _torch(facts: dict[str, Any]) -> Check:
    if "torch" not in facts:
        problem = facts.get("torch_problem", "no word of it")
        return Check("torch", f"cannot be imported: {problem}", "error", "reinstall the environment: docs/software.md")
    cuda = facts.get("cuda")
    return Check("torch", f"{facts['torch']}, built for {f'CUDA {cuda}' if cuda else 'CPUs only'}")


def _against_lock(lock: Path) -> Check:
    try:
        pins = dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\\n]+)", lock.read_text(encoding="utf-8"), re.M))
    except (OSError, UnicodeDecodeError):
        return Check("packages", "cannot tell: the lock file is not beside the package", "warning")
    differing, same = [], []
    for package in PACKAGES:
        if package not in pins:
            continue
        try:
            found = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue  # each has a line of its own
        (same if found == pins[package] else differing).append(f"{package} {found}")
        if found != pins[package]:
            differing[-1] += f" (lock: {pins[package]})"
    if differing:
        return Check(
            "packages", ", ".join(differing), "warning", "envs/make-venv.sh makes an environment as it was tested"
        )
    return Check("packages", f"as locked: {', '.join(same)}")


def _tuning() -> Check:
    problem = torchtune_unsupported_reason()
    if problem:
        return Check("tuning", f"{problem}", "warning", "only language models (workload: llm) need it")
    return Check("tuning", f"torchtune {version('torchtune')}, torchao {version('torchao')}")


def _dali(facts: dict[str, Any]) -> Check:
    if "dali" in facts:
        return Check("DALI", str(facts["dali"]))
    problem = facts.get("dali_problem", "not asked")
    return Check("DALI", f"cannot be imported: {problem}", "warning", "only loader: dali needs it (multicard[dali])")


def _nccl(facts: dict[str, Any]) -> Check:
    if "torch" not in facts:
        return Check("NCCL", "cannot tell: torch cannot be imported", "warning")
    if not facts.get("distributed"):
        return Check("NCCL", "this torch has no torch.distributed", "error", "install a build that has it")
    if not facts.get("distributed_nccl"):
        do = "runs on several GPUs need a CUDA build of torch"
        return Check("NCCL", "this torch has none", "warning" if not facts.get("gpus") else "error", do)
    return Check("NCCL", f"{facts.get('nccl', 'of unknown version')}, in torch.distributed")
