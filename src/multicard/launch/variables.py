"""The environment variables of a training job."""

import getpass
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from multicard.core.secrets import is_secret, without_secrets
from multicard.core.system import SHARED_GPU
from multicard.launchers import LAUNCHERS
from multicard.profilers import PROFILERS
from multicard.programs.program import RankCommand
from multicard.runs.parameters import JobParameters

# Names of variables that a job does not get. Launchers such as torchrun, mpirun and srun set them to pass numbers to
# their ranks. If this process is itself a rank of another job, it has the numbers of that job, and a script that it
# starts would use them. srun sets new ones for the tasks that it starts. The variables of this project are among them,
# except `SHARED_GPU`.
OF_ANOTHER_JOB = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|PET|PMI|PMIX|PMI2|PALS)_\w+"
    r"|OMPI_(COMM_WORLD|UNIVERSE|MCA_orte|MCA_ess)_\w+|(MV2_COMM_WORLD|MPI_LOCAL)\w+"
    r"|SLURM_(PROCID|LOCALID|NODEID|NPROCS|NTASKS\w*|TASK_PID|GTIDS|STEP\w*)"
    rf"|MULTICARD_(?!{SHARED_GPU.removeprefix('MULTICARD_')}$)\w+"
)

# Variables that set the number of threads of PyTorch and other libraries. A job gets all of them with its own number,
# because Snakemake sets all of them to another one, and each library prefers its own variable to OMP_NUM_THREADS
# (PyTorch that of MKL: init_num_threads in aten/src/ATen/ParallelOpenMP.cpp).
THREADS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip

# Variables that may change how fast a job is, or what it computes, are recorded in run.json: those named here, and
# those with these prefixes. Not recorded are names of folders (FOLDER_SUFFIXES) and the variables in NOT_RECORDED, such
# as the GPUs that a job got, and variables that a parameter of the run sets.
RECORDED = ("CC", "CXX", "IBV_FORK_SAFE", "RDMAV_FORK_SAFE", SHARED_GPU, "LD_PRELOAD")
RECORDED_PREFIXES = (
    "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "PYTORCH_",
    "NVIDIA_", "NVTE_", "CUDA_", "CUBLAS_", "CUBLASLT_", "CUDNN_", "MALLOC_", "ACCELERATE_",
    "FI_", "UCX_", "OFI_NCCL_",  # networks of clusters, which NCCL uses through plugins
)  # fmt: skip
NOT_RECORDED = (
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", *THREADS,
    "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK",  # scikit-learn and joblib set these when they are imported
)  # fmt: skip
FOLDER_SUFFIXES = ("_PATH", "_HOME", "_ROOT", "_DIR", "_DIRECTORY")

LOOPBACK = "lo"  # name of the network interface inside a machine


def job_environment(
    source: Mapping[str, str] = os.environ, stated: Sequence[str] = (), withheld: str | None = None
) -> dict[str, str]:
    """Return the variables of `source` that a job gets: all but secrets and those of another job (`OF_ANOTHER_JOB`).

    `stated`: names of variables of another job that this job gets nevertheless, unless they look like secrets.
    `withheld`: pattern; further variables whose names it matches in full are left out.
    """

    def passes(name: str, value: str) -> bool:
        if is_secret(name, value):
            return False
        if OF_ANOTHER_JOB.fullmatch(name) and name not in stated:
            return False
        return withheld is None or not re.fullmatch(withheld, name)

    return {name: value for name, value in source.items() if passes(name, value)}


def secrets_in(source: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the variables that look like secrets. No job gets these variables."""
    return sorted(name for name, value in source.items() if is_secret(name, value))


def settings(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of a job that run.json records: they may change how fast it is, or what it computes.

    Secrets in their values are replaced. `LD_PRELOAD` keeps only the file names of its libraries.
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
    """Return `environment` with the loopback interface for gloo and NCCL, unless it names another interface.

    Ranks of one machine then find each other whatever its networks are.
    """
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), LOOPBACK) | environment


def variables_of_ranks(p: JobParameters, command: RankCommand, profiler: str, temporary: Path) -> dict[str, str]:
    """Return the environment of the ranks of this node.

    Variables of this process replace the defaults below; the fixed ones and those of the profiler replace them all.

    `command`: that of one rank. `profiler`: its name. `temporary`: folder for the ranks' temporary files, which no
    other job uses.
    """
    withheld = LAUNCHERS[p.launched_by].withheld
    environment = job_environment(stated=command.passed_variables, withheld=withheld)
    if p.nodes == 1:
        environment = inside_one_machine(environment)
    defaults = {
        "USER": user(),  # PyTorch's compiler needs a user name, which a container may not have
        # The folder that PyTorch itself would use. It is outside of `temporary`, so that the cache outlives the job.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"torchinductor_{user()}"),
    }
    fixed = {
        **dict.fromkeys(THREADS, str(p.threads)),
        "PYTHONUNBUFFERED": "1",
        # nsys writes to $TMPDIR/nvidia. In a shared TMPDIR, that folder may belong to another user.
        "TMPDIR": str(temporary),
    }
    return {**defaults, **environment, **fixed, **PROFILERS[profiler].environment}


def user() -> str:
    """Return the name of the user, or "uid-1000" by the user's number if there is no name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
