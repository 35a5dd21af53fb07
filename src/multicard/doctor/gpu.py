"""The GPUs and their driver, and whether PyTorch can use them: what NVML, nvidia-smi and PyTorch say, side by side."""

import os
import re
from pathlib import Path
from typing import Any

from multicard.core.system import ask, read_or_none, version_of
from multicard.core.text import counted
from multicard.doctor.checks import Check, cannot_tell

# The first driver of each CUDA generation: docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility".
FIRST_DRIVER = {11: 450, 12: 525, 13: 580}
QUERY = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
LISTED = re.compile(r"(.+), *(\d+|\[.*\]), *([\d.]+)")
NONE_HERE = "runs on cuda need a GPU; those on cpu do not"
# nvidia-smi says "Driver/library version mismatch", NVML's binding "NVML/RM version mismatch".
MISMATCH = re.compile(r"version mismatch", re.I)
KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def checks(facts: dict[str, Any]) -> list[Check]:
    """Look at the driver, the GPUs, and what PyTorch sees of them."""
    answer = ask(QUERY)
    queried = [match.groups() for line in answer.lines if (match := LISTED.fullmatch(line))]
    said = f"{facts.get('nvml_problem', '')} {answer.output} {answer.problem or ''}"
    listed = facts.get("nvml_gpus")
    if MISMATCH.search(said):
        return [_mismatch(said), _seen_by_torch([], facts)]
    if listed:
        compared = [] if len(queried) == len(listed) else [_nvidia_smi(len(queried), len(listed), answer.problem)]
        gpus = [Check("GPU", ", ".join(_counted([_of_nvml(gpu) for gpu in listed]))), *_lost(listed)]
        driver = _driver(facts.get("driver") or "of unknown version", _cuda_of_driver(facts), facts)
        return [*gpus, *compared, *_partitioned(listed), driver, _seen_by_torch(listed, facts)]
    if queried and not answer.problem:
        unknown: list[dict[str, Any]] = [{"index": index} for index in range(len(queried))]
        return [
            Check("GPU", ", ".join(_counted([f"{name.strip()} ({_memory(memory)})" for name, memory, _ in queried]))),
            _driver(facts.get("driver") or queried[0][2], _cuda_of_driver(facts), facts),
            _seen_by_torch(unknown, facts),
        ]
    driver, seen = facts.get("driver"), facts.get("gpus")
    if answer.problem and "not on the PATH" in answer.problem and driver is None and not seen:
        return [Check("GPU", "no NVIDIA driver", "warning", NONE_HERE)]
    unknown_gpus = cannot_tell("GPU", answer, "reinstall the driver, or run this on a node with GPUs")
    known = [_driver(driver, _cuda_of_driver(facts), facts)] if driver else []
    return [unknown_gpus, *known, _seen_by_torch(None, facts)]


def _mismatch(said: str) -> Check:
    """The driver was updated, and the module of the old one is still in the kernel: nothing can use the GPUs."""
    module = re.search(r"Kernel Module\D*([\d.]+)", read_or_none(KERNEL_MODULE.read_text) or "")
    library = re.search(r"NVML library version: *([\d.]+)", said)
    known = [f"its kernel module is {module[1]}"] if module else []
    known += [f"its libraries are {library[1]}"] if library else []
    found = "the parts of the driver differ (Driver/library version mismatch)" + (": " if known else "")
    do = "restart the node, or reload the kernel module nvidia; in a container, use the libraries of the host's driver"
    return Check("driver", found + ", ".join(known), "error", do)


def _of_nvml(gpu: dict[str, Any]) -> str:
    if "problem" in gpu:
        return f"does not answer ({gpu['problem']})"
    memory = "memory unknown" if gpu["memory_bytes"] is None else f"{gpu['memory_bytes'] / 1024**3:.0f} GiB"
    parts = "" if gpu["instances"] is None else f", partitioned (MIG), instances: {len(gpu['instances'])}"
    return f"{gpu['name']} ({memory}{parts})"


def _lost(listed: list[dict[str, Any]]) -> list[Check]:
    lost = [f"GPU {gpu['index']}: {gpu['problem']}" for gpu in listed if "problem" in gpu]
    do = "restart the node; the kernel's log has the reason (dmesg | grep Xid)"
    return [Check("GPUs that do not answer", "; ".join(lost), "error", do)] if lost else []


def _partitioned(listed: list[dict[str, Any]]) -> list[Check]:
    parts = [str(gpu["index"]) for gpu in listed if gpu.get("instances") is not None]
    if not parts:
        return []
    found = f"partitioned: GPU {', '.join(parts)}; a process sees one instance, and NCCL connects none"
    return [
        Check("MIG", found, "warning", "runs on several devices need whole GPUs (nvidia-smi --multi-instance-gpu 0)")
    ]


def _nvidia_smi(queried: int, listed: int, problem: str | None) -> Check:
    """nvidia-smi differs from NVML, and runs are planned for the GPUs that it lists."""
    found = problem or f"lists {counted(queried, 'GPU')}, NVML {listed}"
    return Check("nvidia-smi", found, "error", "runs are planned for the GPUs that it lists; reinstall the driver")


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


def _seen_by_torch(listed: list[dict[str, Any]] | None, facts: dict[str, Any]) -> Check:
    """Compare the GPUs that PyTorch sees with those listed (None: unknown) and with CUDA_VISIBLE_DEVICES."""
    name, visible = "GPUs in torch", os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    if "torch" not in facts:
        return Check(name, "cannot tell: torch cannot be imported", "warning")
    seen = facts.get("gpus")
    problem = facts.get("gpus_problem") or facts.get("started_problem") or facts.get("unanswered")
    if problem or not seen:
        why = facts.get("cuda_init_problem")
        said = problem or f"torch sees no GPU{limited}" + (f": {why}" if why else "")
        if listed is None and not problem:
            return Check(name, said, "warning", "run this on a node with GPUs")
        return Check(name, said, "error", "see the driver's line; or CUDA_VISIBLE_DEVICES hides them")
    smallest = min(memory for _, memory, *_ in seen) / 1024**3
    found = f"{len(seen)}, the smallest with {smallest:.1f} GiB{limited}"
    named = None if visible is None else [entry.strip() for entry in visible.split(",")]
    if named is not None and len(named) != len(seen):
        found = f"{len(seen)}, but {len(named)} named in CUDA_VISIBLE_DEVICES={visible}"
        do = "CUDA ignores what follows an entry that is not there, and shows one MIG instance at most: nvidia-smi -L"
        return Check(name, found, "error", do)
    partitioned = any(gpu.get("instances") for gpu in listed or ())
    if listed is None or (len(seen) >= len(listed) and not partitioned):
        return Check(name, found)
    numbers = {gpu["uuid"].removeprefix("GPU-"): gpu["index"] for gpu in listed if "uuid" in gpu}
    which = [str(numbers[uuid]) for _, _, *uuids in seen for uuid in uuids if uuid in numbers]
    found += f", of {len(listed)}" + (f": {', '.join(which)}" if len(which) == len(seen) else "")
    if named is None and not any(gpu.get("instances") for gpu in listed):
        return Check(
            name, found, "error", "CUDA cannot open the others: the kernel's log may say why (dmesg | grep Xid)"
        )
    return Check(name, found, "warning", "the others are hidden from this process")
