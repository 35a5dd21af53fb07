"""Where a run takes place: hardware, host and versions."""

import os
import platform
import re
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from multicard import __version__
from multicard.core.system import read_or_none
from multicard.record.visible import visible_gpus

DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "numpy")


def versions() -> dict[str, str | None]:
    """Versions of what the measured numbers depend on; None for what is absent."""
    found: dict[str, str | None] = {"multicard": __version__, "python": platform.python_version()}
    found |= {package: read_or_none(lambda package=package: version(package)) for package in PACKAGES}
    found["cuda"] = torch.version.cuda
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    found["driver"] = driver()
    return found


def driver(file: Path = DRIVER) -> str | None:
    """Version of NVIDIA's driver: as Linux shows it; None where it does not.

    The line is "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", or
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@…)".
    """
    shown = re.search(r"^NVRM version:.*?Kernel Module.*? {2}(\d+\.[\d.]+)", read_or_none(file.read_text) or "", re.M)
    return shown[1] if shown else None


def hardware() -> dict[str, Any]:
    """Processor, memory and GPUs of this machine."""
    gpus = [
        {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
        }
        for properties in visible_gpus()
    ]
    model = re.search(r"^model name.*?:(.*)", read_or_none(Path("/proc/cpuinfo").read_text) or "", re.M)
    return {
        "processor": model[1].strip() if model else platform.processor() or platform.machine(),
        "logical_cpus": os.cpu_count(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
    }


def host() -> dict[str, str]:
    """Name and operating system of this machine."""
    return {"name": socket.gethostname(), "system": platform.platform()}
