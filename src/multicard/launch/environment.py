"""The environment variables of a training job."""

import getpass
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from multicard.core.secrets import SECRET_VARIABLE, STANDALONE_TOKEN, TOKEN
from multicard.core.system import SHARED_GPU
from multicard.experiment.parameters import JobParameters
from multicard.profilers import PROFILERS

# Reports of Nsight Systems contain the environment of the job, so a job is started with these variables only.
ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
    # Set by environment modules so that compilers find headers and libraries, for torch.compile.
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
    "IBV_FORK_SAFE", "RDMAV_FORK_SAFE", SHARED_GPU,
)  # fmt: skip
ALLOWED_PREFIXES = (
    "LC_", "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "PYTORCH_", "NVIDIA_",
    "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_",
    "FI_", "UCX_", "OFI_NCCL_",  # networks of clusters, through plugins of NCCL that a module brings
    "SLINGSHOT_",  # set by Slurm for each step: the part of HPE's network that it may use
)  # fmt: skip

# What sets the threads of PyTorch: Snakemake sets both, for a job's whole process, and PyTorch prefers MKL's
# (init_num_threads in aten/src/ATen/ParallelOpenMP.cpp).
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

# Of these, what says where things are, which GPUs a job got, or what a parameter of the run says: none of it is a
# setting of its own. All others may change how fast a job is, or what it computes.
NO_SETTINGS = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CPATH",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", *THREADS,
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",  # set by scikit-learn and joblib wherever these are imported
)  # fmt: skip
NO_SETTINGS_PREFIXES = ("LC_", "SLINGSHOT_")
PLACES = ("_PATH", "_HOME", "_ROOT", "_DIR", "_DIRECTORY")  # what their names end with

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def job_environment(source: Mapping[str, str] = os.environ, stated: Sequence[str] = ()) -> dict[str, str]:
    """Environment of a job: what training needs, and nothing that could be a secret.

    `stated`: names of further variables.
    """
    return {
        name: value
        for name, value in source.items()
        if (name in ALLOWED or name in stated or name.startswith(ALLOWED_PREFIXES))
        and not SECRET_VARIABLE.search(name)
        and not STANDALONE_TOKEN.search(value)
    }


def settings(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of a job's variables that may change how fast it is, or what it computes, for its record."""
    return {
        name: TOKEN.sub("removed", value)
        for name, value in sorted(job_environment(source).items())
        if name not in NO_SETTINGS and not name.startswith(NO_SETTINGS_PREFIXES) and not name.endswith(PLACES)
    }


def inside_one_machine(environment: dict[str, str]) -> dict[str, str]:
    """Have ranks that are all on this machine talk inside it, unless the user chose otherwise."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), LOOPBACK) | environment


def gloo_interface(nccl: str, present: Sequence[str]) -> str | None:
    """First of a node's network interfaces that `NCCL_SOCKET_IFNAME` means; None where it means none of them.

    NCCL takes names by how they begin, `=` before them asks for whole names, and `^` for all but these
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html). Gloo takes whole names only.
    """
    given = nccl
    excluded, given = given.startswith("^"), given.removeprefix("^")
    whole, given = given.startswith("="), given.removeprefix("=")
    names = [name for name in given.split(",") if name]

    def meant(interface: str) -> bool:
        found = interface in names if whole else interface.startswith(tuple(names))
        return found != excluded and (not excluded or interface != LOOPBACK)

    return next(filter(meant, present), None) if names else None


def environment_of(
    parameters: JobParameters, profiler: str, temporary: Path, stated: Sequence[str] = ()
) -> dict[str, str]:
    """Environment of the ranks of this node.

    Parameters
    ----------
    temporary
        Folder of this job alone for their temporary files.
    stated
        Names of further variables that they get.
    """
    environment = job_environment(stated=stated)
    if parameters.nodes == 1:
        environment = inside_one_machine(environment)
    elif chosen := gloo_interface(environment.get("NCCL_SOCKET_IFNAME", ""), _interfaces()):
        # Jobs on GPUs use Gloo too, which would take the interface that the node's name resolves to.
        environment = {"GLOO_SOCKET_IFNAME": chosen} | environment
    otherwise = {
        "USER": user(),  # PyTorch's compiler asks for it, and a container need not know it
        # What the compiler caches outlives the job, in the folder where PyTorch would keep it.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"torchinductor_{user()}"),
    }
    always = {
        **dict.fromkeys(THREADS, str(parameters.threads)),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),  # nsys writes to $TMPDIR/nvidia, which on a shared machine may be another user's
    }
    return otherwise | environment | always | PROFILERS[profiler].environment


def user() -> str:
    """Name of the user; made of the number of one who has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def _interfaces() -> list[str]:
    """Names of this machine's network interfaces that are up and have an address, in the system's order."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    of_internet = (socket.AF_INET, socket.AF_INET6)
    return [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if name in up and any(address.family in of_internet for address in addresses)
    ]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Give a folder for temporary files of one job, on the machine; its path is short, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="multicard-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
