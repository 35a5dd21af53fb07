"""Detect the devices and tools of this machine, without importing torch."""

import contextlib
import importlib.util
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from pathlib import Path

import psutil

from multicard.core.system import Answer, ask, usable_cpus, version_of
from multicard.profilers import PROFILERS

# Versions of torchtune and of what it needs that were tried together, as prefixes of the installed versions. They are
# checked here because torchtune does not declare torch and torchao as dependencies, and does not work with most of
# their versions.
SUPPORTED = {"torchtune": "0.6.1", "torchao": "0.15.", "torch": "2.11."}
# Packages that tuning by TRL imports. TRL and PEFT declare which versions of the others they need.
TRL_PACKAGES = ("trl", "peft", "transformers", "accelerate", "datasets", "tiktoken", "torch")
# The oldest version of torchao beside which PEFT 0.19 and later run; they run without torchao, too.
TORCHAO_OF_PEFT = (0, 16)


@dataclass(frozen=True)
class Machine:
    """The devices and tools of one machine, or of each node of a cluster; made by `Machine.here` or `machine_for`."""

    cpus: int  # CPUs that this process may use or, of a cluster, that jobs may use on a node
    gpus: int  # GPUs that CUDA shows a process or, of a cluster, those of a node
    # Names of the profilers whose program is installed.
    profilers: tuple[str, ...] = tuple(PROFILERS)
    compiler: bool = False  # True if a C++ compiler is installed, which torch.compile needs
    dali: bool = False  # True if NVIDIA DALI is installed
    # What is missing for the workload vision, for torchtune, for TRL, for QAT and for weights in NF4 by TRL, and for
    # Triton to compile kernels for GPUs: text for a message; None if nothing is missing.
    vision: str | None = None
    torchtune: str | None = None
    trl: str | None = None
    torchao: str | None = None
    bitsandbytes: str | None = None
    triton: str | None = None
    gpu_memory_bytes: int | None = None  # memory of the GPU that has least; None if unknown
    # True if a run needs the weights of its language model on disk. False for a machine that no run is started on.
    weights_needed: bool = True
    nodes: int = 1  # the most nodes that one run may have
    # True if runs are jobs of Slurm. Slurm starts no job that requests more CPUs than a node has.
    runs_ask_for_cpus: bool = False
    unanswered: str | None = None  # why an installed tool could not list GPUs or nodes; None if no tool failed
    hidden_gpus: str | None = None  # why CUDA shows fewer GPUs than the machine has; None if it shows all

    def hypothetical(self) -> "Machine":
        """Return a machine that also has all devices and tools that this one lacks. No run can be started on it.

        It shows which runs could run on another machine. It has 8 GPUs or more and 1024 nodes.
        """
        return replace(
            self,
            gpus=max(self.gpus, 8),
            compiler=True,
            dali=True,
            vision=None,
            torchtune=None,
            trl=None,
            torchao=None,
            bitsandbytes=None,
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
            # torch.compile looks for a C++ compiler under the same names.
            compiler=any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name),
            dali=all(map(importlib.util.find_spec, ("nvidia", "nvidia.dali"))),
            vision=vision_unsupported_reason(),
            torchtune=torchtune_unsupported_reason(),
            trl=trl_unsupported_reason(),
            torchao=torchao_unsupported_reason(),
            bitsandbytes=bitsandbytes_unsupported_reason(),
            triton=triton_unsupported_reason(),
            gpu_memory_bytes=min(mebibytes) * 1024**2 if mebibytes else None,
            nodes=int(node_count) if node_count.isdecimal() else 1,
            unanswered=next((answer.problem for answer in (gpus, memory, nodes) if answer.problem), None),
            hidden_gpus=hidden_gpus,
        )


def slurm_job() -> str | None:
    """Return the id of the Slurm job that this process is part of; None if it is in no job."""
    return os.environ.get("SLURM_JOB_ID") or None


def _allocated_nodes() -> Answer:
    """Return the number of nodes of this process's Slurm job as an answer; an empty answer if it is in no job."""
    job = slurm_job()
    if job is None:
        return Answer("")
    # Snakemake's plugin for Slurm starts a run on several nodes without most of Slurm's variables. The script of the
    # job still has them, and it is an ancestor of this process. Slurm's controller (squeue) is asked last, because it
    # may not answer.
    for environment in (os.environ, *_environments_above()):
        nodes = environment.get("SLURM_JOB_NUM_NODES", "")
        if environment.get("SLURM_JOB_ID") == job and nodes.isdecimal():
            return Answer(nodes)
    return _output_of("squeue", "--noheader", f"--jobs={job}", "--format=%D")


def _environments_above() -> Iterator[Mapping[str, str]]:
    """Yield the environment of each ancestor of this process at its start. Those that may not be read are left out."""
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error, OSError):
            yield process.environ()


def triton_unsupported_reason() -> str | None:
    """Return what Triton lacks here to compile kernels for GPUs; None if it lacks nothing.

    Triton builds an extension module of Python. It needs a compiler and Python's headers, which are looked for as
    Triton 3 does (`triton/runtime/build.py`).
    """
    if importlib.util.find_spec("triton") is None:
        return "the package triton, which is not installed"
    if not any(shutil.which(name) for name in (os.environ.get("CC"), "gcc", "clang") if name):
        return "a C compiler, none found (gcc, clang)"
    # Triton makes the same replacement, because of Debian's own Python.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = sysconfig.get_paths(scheme=scheme)["include"]
    if not Path(headers, "Python.h").is_file():
        return f"the headers of Python, not found in {headers} (Debian: apt install python3-dev)"
    return None


def vision_unsupported_reason() -> str | None:
    """Return which packages of the extra `vision` are missing; None if none is."""
    missing = [name for name in ("torch", "torchvision", "sklearn") if importlib.util.find_spec(name) is None]
    return f'training on images needs {" and ".join(missing)} (pip install "multicard[vision]")' if missing else None


def torchtune_python() -> str:
    """Return the path of the interpreter that tunes by torchtune.

    It is that of the environment `torchtune` within this process's own environment, which `make torchtune` makes. If
    there is none, it is this process's own interpreter, whose environment may have torchtune, too.
    """
    separate = Path(sys.prefix, "torchtune", "bin", "python")
    return str(separate) if separate.exists() else sys.executable


def torchtune_unsupported_reason() -> str | None:
    """Return which package of `SUPPORTED` is missing, or which have unsupported versions; None if all are supported.

    The packages are those of `torchtune_python`.
    """
    python = torchtune_python()
    # None: where this process imports from.
    folders = None if python == sys.executable else _package_folders(Path(python).parents[1])
    installed = {}
    for package in SUPPORTED:
        found = distributions(name=package) if folders is None else distributions(name=package, path=folders)
        distribution = next(iter(found), None)
        if distribution is None:
            remedy = 'make torchtune, or pip install "multicard[torchtune]"'
            return f"library: torchtune needs the package {package} ({remedy})"
        installed[package] = distribution.version
    wrong = [
        f"{package} {installed[package]} is installed, {supported.removesuffix('.')} supported"
        for package, supported in SUPPORTED.items()
        if not installed[package].startswith(supported)
    ]
    return "; ".join(wrong) or None


def _package_folders(environment: Path) -> list[str]:
    """Return the folders with the packages of a virtual environment, whose Python may be another version."""
    return [str(folder) for folder in environment.glob("lib/python3*/site-packages")]


def trl_unsupported_reason() -> str | None:
    """Return which of `TRL_PACKAGES` are missing, or that torchao is too old for PEFT; None if nothing is wrong."""
    missing = [package for package in TRL_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        return f'library: trl needs {" and ".join(missing)} (pip install "multicard[llm]")'
    torchao = next(iter(distributions(name="torchao")), None)
    if torchao is not None and (version_of(torchao.version) or ()) < TORCHAO_OF_PEFT:
        least = ".".join(map(str, TORCHAO_OF_PEFT))
        return (
            f"library: trl runs with torchao {least} or later, or without it; {torchao.version} is installed, as "
            "torchtune needs it: install torchtune into an environment of its own (make torchtune)"
        )
    return None


def torchao_unsupported_reason() -> str | None:
    """Return that the package torchao is missing; None if it is installed."""
    if importlib.util.find_spec("torchao") is None:
        return 'QAT by TRL needs the package torchao (pip install "multicard[llm]")'
    return None


def bitsandbytes_unsupported_reason() -> str | None:
    """Return that the package bitsandbytes is missing; None if it is installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return 'weights in NF4 by TRL need the package bitsandbytes (pip install "bitsandbytes>=0.46")'
    return None


def _visible_gpus(listing: list[str]) -> tuple[int, str | None]:
    """Return the number of GPUs that CUDA shows a process, and why it is less than the number of GPUs in `listing`.

    `listing`: lines of `nvidia-smi -L`. The reason is None if CUDA shows all GPUs.

    If any GPU is partitioned (MIG), CUDA shows a process only one slice of one GPU, and no other GPU (NVIDIA's "MIG
    User Guide", "CUDA Device Enumeration").
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
    """Return the answer of a program. If the program is not installed, the answer is empty and has no problem."""
    return ask([program, *arguments]) if shutil.which(program) else Answer("")
