"""Detect what this machine can run, without importing torch."""

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

# torchtune declares neither torch nor torchao, and breaks with most of their versions. These were tried together;
# versions are prefixes.
SUPPORTED = {"torchtune": "0.6.1", "torchao": "0.15.", "torch": "2.11."}


@dataclass(frozen=True)
class Machine:
    """Devices and tools of one machine, or of each node of a cluster; made by `Machine.here` or `machine_for`."""

    cpus: int
    gpus: int
    # Names of the profilers whose program is installed.
    profilers: tuple[str, ...] = tuple(PROFILERS)
    compiler: bool = False  # a C++ compiler is installed, as torch.compile needs
    dali: bool = False  # NVIDIA DALI is installed
    # What a package lacks, in words of a message; None where it lacks nothing: the workload vision, torchtune, and
    # Triton to compile kernels for GPUs.
    vision: str | None = None
    torchtune: str | None = None
    triton: str | None = None
    gpu_memory_bytes: int | None = None  # memory of the smallest GPU
    # Weights of language models have to be there; a machine that is only hypothetical needs none.
    weights_needed: bool = True
    nodes: int = 1  # the most machines that one run may have
    # Runs are jobs of Slurm, which starts none that asks for more CPUs than a node has.
    runs_ask_for_cpus: bool = False
    unanswered: str | None = None  # why an installed tool could not list GPUs or nodes; None where none failed
    hidden_gpus: str | None = None  # why CUDA shows fewer GPUs than the machine has; None where it shows all

    def hypothetical(self) -> "Machine":
        """Return a machine that has also what this one lacks: to plan for, not to run on."""
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
        """Return the machine that this process runs on, with the nodes of its Slurm job if it is in one."""
        gpus = _output_of("nvidia-smi", "-L")
        visible_gpus, hidden_gpus = _visible_gpus(gpus.lines)
        memory = _output_of("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
        # A partitioned GPU (MIG) may report "[N/A]".
        mebibytes = [int(line) for line in memory.lines if line.isdigit()]
        nodes = _allocated_nodes()
        node_count = next(iter(nodes.lines), "")
        return cls(
            cpus=usable_cpus(),
            gpus=visible_gpus,
            profilers=tuple(name for name, profiler in PROFILERS.items() if profiler.is_installed()),
            # Where torch.compile looks for the C++ compiler that it needs.
            compiler=any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name),
            dali=all(map(importlib.util.find_spec, ("nvidia", "nvidia.dali"))),
            vision=vision_unsupported_reason(),
            torchtune=torchtune_unsupported_reason(),
            triton=triton_unsupported_reason(),
            gpu_memory_bytes=min(mebibytes) * 1024**2 if mebibytes else None,
            nodes=int(node_count) if node_count.isdecimal() else 1,
            unanswered=next((answer.problem for answer in (gpus, memory, nodes) if answer.problem), None),
            hidden_gpus=hidden_gpus,
        )


def slurm_job() -> str | None:
    """Return the id of the Slurm job that this process is part of; None outside of any."""
    return os.environ.get("SLURM_JOB_ID") or None


def _allocated_nodes() -> Answer:
    """Return an answer with the number of nodes of this process's Slurm job; an empty answer outside of any."""
    job = slurm_job()
    if job is None:
        return Answer("")
    # Snakemake's plugin for Slurm starts a run on several nodes without most of Slurm's variables, which the script of
    # the job has: it is among the processes that this one descends from. The controller may be away.
    for environment in (os.environ, *_environments_above()):
        nodes = environment.get("SLURM_JOB_NUM_NODES", "")
        if environment.get("SLURM_JOB_ID") == job and nodes.isdecimal():
            return Answer(nodes)
    return _output_of("squeue", "--noheader", f"--jobs={job}", "--format=%D")


def _environments_above() -> Iterator[Mapping[str, str]]:
    """Yield the environments with which the processes above this one were started, as far as they may be read."""
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error, OSError):
            yield process.environ()


def triton_unsupported_reason() -> str | None:
    """Return what Triton lacks here to compile kernels for GPUs; None where it lacks nothing.

    It builds a module of Python, with the compiler and the headers that Triton 3 looks for (`triton/runtime/build.py`).
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton, which is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name):
        return "a C compiler, none found (gcc, clang)"
    # Triton does the same, for Debian's own Python.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = sysconfig.get_paths(scheme=scheme)["include"]
    if not Path(headers, "Python.h").is_file():
        return f"the headers of Python, not found in {headers} (Debian: apt install python3-dev)"
    return None


def vision_unsupported_reason() -> str | None:
    """Return that a package of the extra `vision` is missing; None where none is."""
    missing = [name for name in ("torch", "torchvision", "sklearn") if importlib.util.find_spec(name) is None]
    return f'training on images needs {" and ".join(missing)} (pip install "multicard[vision]")' if missing else None


def torchtune_unsupported_reason() -> str | None:
    """Return which packages that tune language models are missing or untried versions; None where all are there."""
    installed = {}
    for package in SUPPORTED:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            return f'tuning language models needs the package {package} (pip install "multicard[llm]")'
    wrong = [
        f"{package} {installed[package]} is installed, {supported.removesuffix('.')} supported"
        for package, supported in SUPPORTED.items()
        if not installed[package].startswith(supported)
    ]
    return "; ".join(wrong) or None


def _visible_gpus(listing: list[str]) -> tuple[int, str | None]:
    """Return the number of GPUs that CUDA shows a process, and why fewer than `nvidia-smi -L` lists, or None.

    `listing`: lines of `nvidia-smi -L`.

    Of GPUs that are partitioned (MIG) a process is shown one slice, and then no other GPU: NVIDIA's "MIG User Guide",
    "CUDA Device Enumeration".
    """
    gpus = [line for line in listing if line.startswith("GPU ")]
    selection = os.environ.get("CUDA_VISIBLE_DEVICES")
    if any(line.startswith("MIG ") for line in listing):
        return 1, "CUDA shows a process one slice of a partitioned GPU (MIG)"
    if selection is None or not gpus:
        return len(gpus), None
    selected = [entry for entry in selection.split(",") if entry.strip() not in ("", "-1")]
    if len(selected) >= len(gpus):
        return len(gpus), None
    return len(selected), f'CUDA_VISIBLE_DEVICES is "{selection}"'


def _output_of(program: str, *arguments: str) -> Answer:
    """Return the answer of a program; a program that is not installed gives an empty answer, without a problem."""
    return ask([program, *arguments]) if shutil.which(program) else Answer("")
