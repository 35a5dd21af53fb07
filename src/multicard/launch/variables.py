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

# A job gets all variables but secrets and these, by which the launcher of another job, that this process is part of,
# tells its ranks who they are: a script would take them for its own. Slurm sets its own for every step.
OF_ANOTHER_JOB = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|PMI|PMIX|PMI2|PALS)_\w+"
    r"|OMPI_(COMM_WORLD|UNIVERSE|MCA_orte|MCA_ess)_\w+|(MV2_COMM_WORLD|MPI_LOCAL)\w+"
    r"|SLURM_(PROCID|LOCALID|NODEID|NPROCS|NTASKS\w*|TASK_PID|GTIDS|STEP\w*)"
    rf"|MULTICARD_(?!{SHARED_GPU.removeprefix('MULTICARD_')}$)\w+"
)

# What sets the threads of PyTorch and of libraries beside it: Snakemake sets all, for a job's whole process, and each
# library prefers its own (PyTorch MKL's: init_num_threads in aten/src/ATen/ParallelOpenMP.cpp).
THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip

# Those that may change how fast a job is, or what it computes, and so are recorded; but not what says where things
# are, which GPUs a job got, or what a parameter of the run says.
RECORDED = ("CC", "CXX", "IBV_FORK_SAFE", "RDMAV_FORK_SAFE", SHARED_GPU, "LD_PRELOAD")
RECORDED_PREFIXES = (
    "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "PYTORCH_",
    "NVIDIA_", "NVTE_", "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "MALLOC_", "ACCELERATE_",
    "FI_", "UCX_", "OFI_NCCL_",  # networks of clusters, through plugins of NCCL that a module brings
)  # fmt: skip
NO_SETTINGS = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", *THREADS,
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",  # set by scikit-learn and joblib wherever these are imported
)  # fmt: skip
PLACES = ("_PATH", "_HOME", "_ROOT", "_DIR", "_DIRECTORY")  # what their names end with

LOOPBACK = "lo"


def job_environment(
    source: Mapping[str, str] = os.environ, stated: Sequence[str] = (), withheld: str | None = None
) -> dict[str, str]:
    """Environment of a job: what it would have without multicard, less what looks like a secret.

    `stated`: names of variables that pass though they are of another job; `withheld`: pattern of those that do not.
    """
    return {
        name: value
        for name, value in source.items()
        if not is_secret(name, value)
        and (name in stated or not OF_ANOTHER_JOB.fullmatch(name))
        and (withheld is None or not re.fullmatch(withheld, name))
    }


def secrets_in(source: Mapping[str, str] = os.environ) -> list[str]:
    """Names of the variables that look like secrets, which no job gets."""
    return sorted(name for name, value in source.items() if is_secret(name, value))


def settings(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of a job's variables that may change how fast it is, or what it computes, for its record.

    Of libraries that are loaded first (`LD_PRELOAD`), their names.
    """
    found = {
        name: without_secrets(value)
        for name, value in sorted(job_environment(source).items())
        if (name in RECORDED or name.startswith(RECORDED_PREFIXES))
        and name not in NO_SETTINGS
        and not name.endswith(PLACES)
    }
    if preloaded := found.get("LD_PRELOAD"):
        found["LD_PRELOAD"] = " ".join(Path(each).name for each in re.split(r"[\s:]+", preloaded) if each)
    return found


def inside_one_machine(environment: dict[str, str]) -> dict[str, str]:
    """Have ranks that are all on this machine talk inside it, unless the user chose otherwise."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), LOOPBACK) | environment


def variables_of_ranks(p: JobParameters, profiler: str, temporary: Path) -> dict[str, str]:
    """Environment of the ranks of this node; `temporary`: folder of this job alone for their temporary files."""
    launching = WORKLOADS[p.workload].launching(p)
    environment = job_environment(stated=launching.passed_variables, withheld=launching.withheld_variables)
    if p.nodes == 1:
        environment = inside_one_machine(environment)
    otherwise = {
        "USER": user(),  # PyTorch's compiler asks for it, and a container need not know it
        # What the compiler caches outlives the job, in the folder where PyTorch would keep it.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"torchinductor_{user()}"),
    }
    always = {
        **dict.fromkeys(THREADS, str(p.threads)),
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
