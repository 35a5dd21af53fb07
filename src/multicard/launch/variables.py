"""The environment variables of a training job."""

import getpass
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from multicard.core.secrets import is_secret, without_secrets
from multicard.core.system import SHARED_GPU
from multicard.experiment.workload import WORKLOADS
from multicard.profilers import PROFILERS
from multicard.runs.parameters import JobParameters

# A job gets all variables but secrets and these, by which the launcher of another job, which this process is part of,
# passes its ranks their numbers: a script would use them as its own. Slurm sets its own for every step.
OF_ANOTHER_JOB = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|PMI|PMIX|PMI2|PALS)_\w+"
    r"|OMPI_(COMM_WORLD|UNIVERSE|MCA_orte|MCA_ess)_\w+|(MV2_COMM_WORLD|MPI_LOCAL)\w+"
    r"|SLURM_(PROCID|LOCALID|NODEID|NPROCS|NTASKS\w*|TASK_PID|GTIDS|STEP\w*)"
    rf"|MULTICARD_(?!{SHARED_GPU.removeprefix('MULTICARD_')}$)\w+"
)

# They set the threads of PyTorch and of libraries beside it. Snakemake sets all, for a job's whole process, and each
# library prefers its own (PyTorch MKL's: init_num_threads in aten/src/ATen/ParallelOpenMP.cpp).
THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip

# Variables that may change how fast a job is, or what it computes, are recorded: these, and those with the prefixes
# below. Names of folders, the GPUs that a job got, and what a parameter of the run sets are not.
RECORDED = ("CC", "CXX", "IBV_FORK_SAFE", "RDMAV_FORK_SAFE", SHARED_GPU, "LD_PRELOAD")
RECORDED_PREFIXES = (
    "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "PYTORCH_",
    "NVIDIA_", "NVTE_", "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "MALLOC_", "ACCELERATE_",
    "FI_", "UCX_", "OFI_NCCL_",  # networks of clusters, through plugins of NCCL that a module brings
)  # fmt: skip
NOT_RECORDED = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", *THREADS,
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",  # set by scikit-learn and joblib wherever these are imported
)  # fmt: skip
FOLDER_SUFFIXES = ("_PATH", "_HOME", "_ROOT", "_DIR", "_DIRECTORY")

LOOPBACK = "lo"


def job_environment(
    source: Mapping[str, str] = os.environ, stated: Sequence[str] = (), withheld: str | None = None
) -> dict[str, str]:
    """Return the environment of a job: what it would have without multicard, less what looks like a secret.

    `stated`: names of variables of another job that this one gets nevertheless; `withheld`: pattern of the names of
    further variables that it does not get.
    """

    def passes(name: str, value: str) -> bool:
        if is_secret(name, value):
            return False
        if OF_ANOTHER_JOB.fullmatch(name) and name not in stated:
            return False
        return withheld is None or not re.fullmatch(withheld, name)

    return {name: value for name, value in source.items() if passes(name, value)}


def secrets_in(source: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the variables that look like secrets, which no job gets."""
    return sorted(name for name, value in source.items() if is_secret(name, value))


def settings(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return for run.json the variables of a job that may change how fast it is, or what it computes.

    Libraries that are loaded first (`LD_PRELOAD`) are recorded by their names, without folders.
    """
    recorded = {
        name: without_secrets(value)
        for name, value in sorted(job_environment(source).items())
        if (name in RECORDED or name.startswith(RECORDED_PREFIXES))
        and name not in NOT_RECORDED
        and not name.endswith(FOLDER_SUFFIXES)
    }
    if preloaded := recorded.get("LD_PRELOAD"):
        libraries = [Path(library).name for library in re.split(r"[\s:]+", preloaded) if library]
        recorded["LD_PRELOAD"] = " ".join(libraries)
    return recorded


def inside_one_machine(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of ranks that talk to each other inside this machine, unless the user chose otherwise."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), LOOPBACK) | environment


def variables_of_ranks(p: JobParameters, profiler: str, temporary: Path) -> dict[str, str]:
    """Return the environment of the ranks of this node.

    `profiler`: its name; `temporary`: folder of this job alone for their temporary files.
    """
    launching = WORKLOADS[p.workload].launching(p)
    environment = job_environment(stated=launching.passed_variables, withheld=launching.withheld_variables)
    if p.nodes == 1:
        environment = inside_one_machine(environment)
    defaults = {
        "USER": user(),  # PyTorch's compiler asks for it, and a container need not know it
        # The compiler's cache outlives the job, in the folder where PyTorch would keep it.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"torchinductor_{user()}"),
    }
    fixed = {
        **dict.fromkeys(THREADS, str(p.threads)),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),  # nsys writes to $TMPDIR/nvidia, which on a shared machine may be another user's
    }
    return {**defaults, **environment, **fixed, **PROFILERS[profiler].environment}


def user() -> str:
    """Return the name of the user; if there is none, as in a container, a name with the user's number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
