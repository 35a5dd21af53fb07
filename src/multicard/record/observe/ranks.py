"""Which rank a process of a script is, and whether ranks exchange anything with each other."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from multicard.core.files import read_json
from multicard.core.layout import PROCESS, rank_file

# Variables in which launchers tell a process its rank, and how many there are: torchrun and its like, Open MPI, MPICH
# and Intel MPI, Slurm. Open MPI may start its ranks by way of Slurm, so the latter is asked last.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # site/sitecustomize.py has them too
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
COUNTING = ("ProcessGroupGloo", "ProcessGroupNCCL")  # back ends that number all their collectives
# By these, ranks exchange what no process group of PyTorch sees.
OTHER_WAYS = ("horovod", "mpi4py", "byteps", "bagua", "hivemind", "torch_xla")
BETWEEN_TWO = ("send", "recv", "recv_anysource")  # which NCCL numbers apart from collectives
messages = Counter[str]()  # between two ranks, of this process so far


def claim_rank(job: dict[str, Any]) -> bool:
    """Whether this process is the first of its rank. A second one does not know its rank, or is no rank."""
    path = Path(job["scratch"]) / rank_file("claimed", rank_of_process())
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return path.read_text(encoding="utf-8") == str(os.getpid())
    return True


def is_outermost(job: dict[str, Any]) -> bool:
    """Whether no Python process that started this one was told the same rank: else this is a helper, and no rank."""
    told_by = next((f"{name}={value}" for name in RANKS if (value := os.environ.get(name, "")).isdigit()), None)
    parent = Path(job["scratch"]) / f"{PROCESS}.{os.getppid()}"
    return told_by is None or not parent.exists() or read_json(parent)["told"] != told_by


def rank_of_process() -> int:
    """Rank of this process, by its process group or what a launcher told it; else 0."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return told(RANKS) or 0


def world_size() -> int:
    """Ranks of the script, likewise; else 1."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return told(SIZES) or 1


def told(names: Sequence[str]) -> int | None:
    """Number in the first of these variables that is set and holds one."""
    return next((int(value) for name in names if (value := os.environ.get(name, "")).isdigit()), None)


def exchanges() -> dict[str, int] | None:
    """Collectives of each process group so far, and messages; None where there may be others."""
    rpc = sys.modules.get("torch.distributed.rpc.api")
    has_agent = getattr(rpc, "_is_current_rpc_agent_set", lambda: False)
    if any(name in sys.modules for name in OTHER_WAYS) or has_agent():
        return None
    try:
        return dict(messages) | dict(_collectives())
    except Exception:  # a group of the script's own kind, or a back end that does not count
        return None


def _collectives() -> Iterator[tuple[str, int]]:
    """Number of collectives so far in each process group of several ranks."""
    if not dist.is_available() or not dist.is_initialized():
        return
    for group in dist.distributed_c10d._world.pg_map:  # PyTorch has no public list of them
        for device in group._device_types if group.size() > 1 else ():
            backend = group._get_backend(device)
            if type(backend).__name__ not in COUNTING:
                raise TypeError(backend)
            yield f"{group.group_name} {device}", backend._get_sequence_number_for_group()
