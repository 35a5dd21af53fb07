"""Whether torch.compile works, which runs with `compile`, `cuda_graphs` or `packed` need: on one small function."""

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from multicard.core.system import ask
from multicard.doctor.checks import Check
from multicard.experiment.runs import Run
from multicard.launch.environment import job_environment, user

LIMIT_S = 300.0  # a cold compilation on few CPUs and a shared file system
DONE = "multicard: compiled"
# On a GPU Inductor writes a kernel for Triton, which compiles a launcher in C against Python's headers and libcuda.
PROGRAM = f"""
import sys, torch
device = sys.argv[1]
x = torch.arange(4096, dtype=torch.float32, device=device)
y = torch.compile(lambda x: torch.relu(x - 2048) * 2 + 1)(x)
assert y.sum().item() == 2 * sum(range(2048)) + 4096, "the compiled function computes something else"
print("{DONE}")
"""
DO = "a C++ compiler (gcc, g++; a module), the headers of this Python (python3-dev), libcuda.so.1 known to ldconfig"


def checks(facts: dict[str, Any], runs: Iterable[Run], limit_s: float = LIMIT_S) -> list[Check]:
    """Compile for the devices here on which some of the runs compile; nothing where none does."""
    needing = [run for run in runs if _compiles(run)]
    on_gpu = any(run.parameters.device == "cuda" for run in needing)
    devices = ["cuda"] if on_gpu and facts.get("started") else []
    devices += ["cpu"] if any(run.parameters.device == "cpu" for run in needing) and "torch" in facts else []
    return [_compiled(device, limit_s) for device in devices]


def _compiles(run: Run) -> bool:
    """Whether a run compiles: as it is told, or, for packed sequences on a GPU, through flex attention."""
    p = run.parameters
    asked = getattr(p, "compile", False) or getattr(p, "cuda_graphs", False)
    return asked or (getattr(p, "packed", False) and p.device == "cuda")


def _compiled(device: str, limit_s: float) -> Check:
    name = "Triton kernel" if device == "cuda" else "torch.compile on CPUs"
    with tempfile.TemporaryDirectory(prefix="multicard-doctor-", ignore_cleanup_errors=True) as scratch:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor", "TRITON_CACHE_DIR": f"{scratch}/triton"}
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, device]
        answer = ask(command, limit_s, {"USER": user()} | job_environment(os.environ) | caches)
        kernels = list(Path(scratch).rglob("*.cubin"))
    if DONE not in answer.lines:
        problem = (answer.problem or "no answer").replace(sys.executable, "python", 1)
        return Check(name, f"cannot be compiled: {problem}", "error", DO)
    if device == "cuda" and not kernels:
        return Check(name, "compiled, but not by Triton", "warning", "TORCHINDUCTOR_ or TORCH_COMPILE variables?")
    return Check(name, "compiled a small function, and its result is right")
