"""The GPUs and their driver, and whether PyTorch can use them."""

import os
import re
from typing import Any

from multicard.core.system import ask
from multicard.doctor.checks import Check, cannot_tell, version_of

# The first driver of each CUDA generation: docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility".
FIRST_DRIVER = {11: 450, 12: 525, 13: 580}
QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
LISTED = re.compile(r"(.+), *(\d+|\[.*\]), *([\d.]+)")
NONE_HERE = "runs on cuda need a GPU; those on cpu do not"


def checks(facts: dict[str, Any]) -> list[Check]:
    """Look at the driver, the GPUs, and what PyTorch sees of them."""
    answer = ask(QUERY)
    gpus = [match.groups() for line in answer.lines if (match := LISTED.fullmatch(line))]
    driver = facts.get("driver")
    if answer.problem or not gpus:
        if answer.problem and "not on the PATH" in answer.problem and driver is None:
            return [Check("GPU", "no NVIDIA driver", "warning", NONE_HERE)]
        unknown = [cannot_tell("GPU", answer, "reinstall the driver, or run this on a node with GPUs")]
        if driver is None:
            return unknown
        # NVML comes with the driver, and may still answer.
        return [*unknown, _driver(driver, _cuda_of_driver(facts), facts), _seen_by_torch(None, facts)]
    found = ", ".join(_counted([f"{name.strip()} ({_memory(memory)})" for name, memory, _ in gpus]))
    return [
        Check("GPU", found),
        _driver(driver or gpus[0][2], _cuda_of_driver(facts), facts),
        _seen_by_torch(len(gpus), facts),
    ]


def _memory(mebibytes: str) -> str:
    """Memory of a GPU; one that is partitioned (MIG) may not report it."""
    return f"{int(mebibytes) / 1024:.0f} GiB" if mebibytes.isdecimal() else "memory unknown"


def _counted(names: list[str]) -> list[str]:
    return [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]


def _cuda_of_driver(facts: dict[str, Any]) -> tuple[int, int] | None:
    """The newest CUDA that the driver supports: from NVML, else from the head of nvidia-smi's table."""
    number = facts.get("driver_cuda")
    if isinstance(number, int):
        return number // 1000, number % 1000 // 10
    found = re.search(r"CUDA[A-Z ]* Version: *(\d+)\.(\d+)", ask(["nvidia-smi"]).output)
    return (int(found[1]), int(found[2])) if found else None


def _driver(driver: str, cuda: tuple[int, int] | None, facts: dict[str, Any]) -> Check:
    wanted = version_of(facts.get("cuda") or "")
    if wanted is None:
        if "torch" not in facts:
            return Check("driver", f"{driver}; cannot tell whether it fits torch, which cannot be imported", "warning")
        return Check("driver", f"{driver}, but torch is built for CPUs only", "error", "install a CUDA build of torch")
    needs, first = f"torch's CUDA {'.'.join(map(str, wanted))}", FIRST_DRIVER.get(wanted[0])
    found = f"{driver} (CUDA {cuda[0]}.{cuda[1]})" if cuda else driver
    if cuda:
        old, older = cuda[0] < wanted[0], cuda < wanted[:2]
    elif first and version_of(driver):
        old, older = version_of(driver)[0] < first, False
    else:
        return Check("driver", f"{found}; cannot tell which CUDA it supports", "warning", f"it must support {needs}")
    if old and facts.get("started"):
        return Check(
            "driver", f"{found} is older than {needs}", "warning", "torch starts on it: through NVIDIA's cuda-compat?"
        )
    if old:
        do = f"a driver from {first} on" if first else "a newer driver"
        return Check("driver", f"{found} is too old for {needs}", "error", f"{do}, or a torch built for its CUDA")
    if older:
        return Check("driver", f"{found} is older than {needs}", "warning", "the same generation: most features work")
    return Check("driver", f"{found}, {needs}")


def _seen_by_torch(gpus: int | None, facts: dict[str, Any]) -> Check:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    if "torch" not in facts:
        return Check("GPUs in torch", "cannot tell: torch cannot be imported", "warning")
    seen = facts.get("gpus")
    problem = facts.get("gpus_problem") or facts.get("started_problem")
    if problem or not seen:
        said = problem or f"torch sees no GPU{limited}"
        return Check("GPUs in torch", said, "error", "see the driver's line; or CUDA_VISIBLE_DEVICES hides them")
    smallest = min(memory for _, memory in seen) / 1024**3
    found = f"{len(seen)}, the smallest with {smallest:.1f} GiB{limited}"
    if gpus is not None and len(seen) < gpus:
        return Check("GPUs in torch", f"{found}, of {gpus}", "warning", "the others are hidden from this process")
    return Check("GPUs in torch", found)
