"""What this machine can run, found without importing torch."""

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Devices and tools of one machine."""

    cpus: int
    gpus: int
    nsys: bool
    compiler: bool = False
    dali: bool = False

    @classmethod
    def here(cls) -> "Machine":
        """Look at the machine that this process runs on."""
        cpus = usable_cpus()
        return cls(cpus=cpus, gpus=_gpus(), nsys=shutil.which("nsys") is not None, compiler=_compiler(), dali=_dali())


def usable_cpus() -> int:
    """Count the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compiler() -> bool:
    """Whether torch.compile would find the C++ compiler that it needs."""
    return any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


def _dali() -> bool:
    """Whether NVIDIA DALI is installed."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False


def _gpus() -> int:
    """Count the GPUs that a CUDA program would see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
