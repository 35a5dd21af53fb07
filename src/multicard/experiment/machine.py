"""What this machine can run, found without importing torch."""

import contextlib
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from multicard.core.system import Answer, ask, usable_cpus
from multicard.profilers import PROFILERS

# torchtune declares neither torch nor torchao, and breaks with most of their versions. These were tried together.
SUPPORTED = {"torchtune": "0.6.1", "torchao": "0.15.", "torch": "2.11."}


@dataclass(frozen=True)
class Machine:
    """Devices and tools of one machine, or of each of several alike."""

    cpus: int
    gpus: int
    profilers: tuple[str, ...] = tuple(PROFILERS)  # those whose program is installed
    compiler: bool = False
    dali: bool = False
    vision: str | None = None  # why the workload vision cannot be used; None where it can
    torchtune: str | None = None  # why torchtune cannot be used; None where it can
    triton: str | None = None  # what Triton lacks to compile kernels for GPUs; None where it lacks nothing
    gpu_memory_bytes: int | None = None  # of the smallest GPU
    weights_needed: bool = True  # of language models; a machine that is only hypothetical needs none
    nodes: int = 1  # machines that one run may have
    runs_ask_for_cpus: bool = False  # as jobs of Slurm do, which starts none that asks for more than a node has
    unanswered: str | None = None  # why a tool that is installed could not list GPUs or nodes; None where none failed
    hidden_gpus: str | None = None  # why CUDA shows fewer than the machine has; else None

    def hypothetical(self) -> "Machine":
        """Add to this machine whatever it does not have, to plan for."""
        return replace(
            self,
            gpus=max(self.gpus, 8),
            compiler=True,
            dali=True,
            vision=None,
            torchtune=None,
            triton=None,
            profilers=tuple(PROFILERS),
            weights_needed=False,
            nodes=1024,
            runs_ask_for_cpus=False,
            hidden_gpus=None,
        )

    @classmethod
    def here(cls) -> "Machine":
        """Look at the machine that this process runs on, and at its job of Slurm if it is in one."""
        gpus, nodes = _asked("nvidia-smi", "-L"), _allocated_nodes()
        visible, hidden = _visible_gpus(gpus.lines)
        memory = _asked("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        count = next(iter(nodes.lines), "")
        mebibytes = [int(line) for line in memory.lines if line.isdigit()]  # a GPU in slices (MIG) may report none
        return cls(
            cpus=usable_cpus(),
            gpus=visible,
            profilers=tuple(name for name, profiler in PROFILERS.items() if profiler.is_installed()),
            # As torch.compile looks for the C++ compiler that it needs.
            compiler=any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name),
            dali=all(map(importlib.util.find_spec, ("nvidia", "nvidia.dali"))),
            vision=vision_unsupported_reason(),
            torchtune=torchtune_unsupported_reason(),
            triton=triton_unsupported_reason(),
            gpu_memory_bytes=min(mebibytes) * 1024**2 if mebibytes else None,
            nodes=int(count) if count.isdecimal() else 1,
            unanswered=next((answer.problem for answer in (gpus, memory, nodes) if answer.problem), None),
            hidden_gpus=hidden,
        )


def slurm_job() -> str | None:
    """Id of the job of Slurm that this process is part of."""
    return os.environ.get("SLURM_JOB_ID") or None


def _allocated_nodes() -> Answer:
    """Answer with the number of nodes of this process's Slurm job; an empty one outside of any."""
    job = slurm_job()
    if job is None:
        return Answer("")
    # Snakemake's plugin for Slurm starts a run on several nodes without most of Slurm's variables, which the script of
    # the job has: it is among the processes that this one descends from. The controller may be away.
    for environment in (os.environ, *_environments_above()):
        nodes = environment.get("SLURM_JOB_NUM_NODES", "")
        if environment.get("SLURM_JOB_ID") == job and nodes.isdecimal():
            return Answer(nodes)
    return _asked("squeue", "--noheader", f"--jobs={job}", "--format=%D")


def _environments_above() -> Iterator[Mapping[str, str]]:
    """Yield the environments with which the processes above this one were started, as far as they may be read."""
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error, OSError):
            yield process.environ()


def triton_unsupported_reason() -> str | None:
    """What Triton lacks here to compile kernels for GPUs; None where it lacks nothing.

    It builds a module of Python, with the compiler and the headers that Triton 3 looks for (`triton/runtime/build.py`).
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton, which is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name):
        return "a C compiler, none found (gcc, clang)"
    # As Triton, for Debian's own Python.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = sysconfig.get_paths(scheme=scheme)["include"]
    if not Path(headers, "Python.h").is_file():
        return f"the headers of Python, not found in {headers} (Debian: apt install python3-dev)"
    return None


def vision_unsupported_reason() -> str | None:
    """Why images cannot be trained on: a package of the extra `vision` is missing."""
    missing = [name for name in ("torch", "torchvision", "sklearn") if importlib.util.find_spec(name) is None]
    return f'training on images needs {" and ".join(missing)} (pip install "multicard[vision]")' if missing else None


def torchtune_unsupported_reason() -> str | None:
    """Which of the packages that tune language models is missing, or of another version than was tried; or None."""
    found = {}
    for package in SUPPORTED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            return f'tuning language models needs the package {package} (pip install "multicard[llm]")'
    wrong = [
        f"{package} {found[package]} is installed, {supported.removesuffix('.')} supported"
        for package, supported in SUPPORTED.items()
        if not found[package].startswith(supported)
    ]
    return "; ".join(wrong) or None


def _visible_gpus(listing: list[str]) -> tuple[int, str | None]:
    """Number of GPUs that CUDA shows a process, and why these are not all that `nvidia-smi -L` lists.

    Of GPUs that are partitioned (MIG) a process is shown one slice, and then no other GPU: NVIDIA's "MIG User Guide",
    "CUDA Device Enumeration".
    """
    gpus = [line for line in listing if line.startswith("GPU ")]
    selection = os.environ.get("CUDA_VISIBLE_DEVICES")
    if any(line.startswith("MIG ") for line in listing):
        return 1, "CUDA shows a process one slice of a partitioned GPU (MIG)"
    if selection is None or not gpus:
        return len(gpus), None
    shown = min(len(gpus), len([entry for entry in selection.split(",") if entry.strip() not in ("", "-1")]))
    return shown, f'CUDA_VISIBLE_DEVICES is "{selection}"' if shown < len(gpus) else None


def _asked(program: str, *arguments: str) -> Answer:
    """What a program answers; that it is missing is no problem, but an answer."""
    return ask([program, *arguments]) if shutil.which(program) else Answer("")
