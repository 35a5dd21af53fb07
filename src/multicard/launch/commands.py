"""Command lines and environment of a training job."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

# Reports of Nsight Systems contain the environment of the job, so a job is started with these variables only.
ALLOWED = (
    "PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX",
    "CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
    "CUDA_ROOT", "CUDA_CACHE_PATH", "CUBLAS_WORKSPACE_CONFIG",
    # Set by environment modules so that compilers find headers and libraries, for torch.compile.
    "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH",
)  # fmt: skip
ALLOWED_PREFIXES = (
    "LC_", "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_NCCL_", "TORCHINDUCTOR_", "TRITON_", "PYTORCH_", "NVIDIA_",
    "FI_", "UCX_",  # networks of clusters, through plugins of NCCL that a module brings
)  # fmt: skip


LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def job_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment of a job: what training needs, and nothing that could be a secret."""
    return {name: value for name, value in source.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)}


@dataclass(frozen=True)
class Rendezvous:
    """One of the nodes that a job runs on, and where the first of them listens."""

    node: int
    nodes: int
    address: str
    port: int


def training_command(
    module: str, arguments: list[str], ranks: int, distributed: bool, rendezvous: Rendezvous | None = None
) -> list[str]:
    """Command that runs a module in one process, or under torchrun in `ranks` processes of this machine.

    `rendezvous`: which of several nodes this machine is; its ranks follow those of the nodes before it.
    """
    if not distributed:
        return [sys.executable, "-m", module, *arguments]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    if rendezvous is None:
        # A free port, so that jobs on one machine never meet.
        torchrun += ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
    else:
        torchrun += [f"--nnodes={rendezvous.nodes}", f"--node-rank={rendezvous.node}"]
        torchrun += [f"--master-addr={rendezvous.address}", f"--master-port={rendezvous.port}"]
    return [*torchrun, "-m", module, *arguments]
