"""Find out which rank a process of a script is, and whether ranks exchange anything with each other."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist

from multicard.core.files import read_json
from multicard.core.job_file import JobFile
from multicard.core.layout import PROCESS, rank_file

# Variables in which launchers give a process its rank, and the number of ranks: those of torchrun and similar
# launchers, of Open MPI, of MPICH and Intel MPI, and of Slurm. The first one that is set counts. Slurm's come last,
# because Open MPI may start its ranks through Slurm.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # site/sitecustomize.py has them too
SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
# Back ends that number all their collectives.
COUNTING_BACKENDS = ("ProcessGroupGloo", "ProcessGroupNCCL")
# If one of these libraries is imported, ranks may exchange data that no process group of PyTorch counts.
OTHER_LIBRARIES = ("horovod", "mpi4py", "byteps", "bagua", "hivemind", "torch_xla")
# Methods of a process group for messages between two ranks, which NCCL does not number among the collectives.
BETWEEN_TWO = ("send", "recv", "recv_anysource")
MESSAGES = "between two"
messages = Counter[str]()  # number of messages between two ranks that this process has sent or received so far


def claim_rank(job: JobFile) -> bool:
    """Claim the rank of this process; return True if no other process has claimed it before.

    Another process may have the same rank because it cannot find out its own rank, or because it is a helper that a
    rank has started. If the first process claims its rank again, this returns True again.
    """
    path = job.scratch / rank_file("claimed", rank_of_process())
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return path.read_text(encoding="utf-8") == str(os.getpid())
    return True


def is_outermost(job: JobFile) -> bool:
    """Return False if this process is a helper of a rank: its launcher's rank is that of its observed parent process.

    Return True if no launcher has given this process a rank.
    """
    given = _given_rank()
    parent = job.scratch / f"{PROCESS}.{os.getppid()}"
    return given is None or not parent.exists() or read_json(parent)["told"] != given


def _given_rank() -> str | None:
    """Return the launcher's variable with this process's rank, as `told` in process.json ("RANK=0"); None if unset."""
    for name in RANK_VARIABLES:
        value = os.environ.get(name, "")
        if value.isdigit():
            return f"{name}={value}"
    return None


def has_process_group() -> bool:
    """Return True if this process has a process group. A PyTorch without torch.distributed has only `is_available`."""
    return dist.is_available() and dist.is_initialized()


def rank_of_process() -> int:
    """Return the rank of this process: by its process group, else by its launcher's variables, else 0."""
    if has_process_group():
        return dist.get_rank()
    return number_in_environment(RANK_VARIABLES) or 0


def world_size() -> int:
    """Return the number of the script's ranks: by its process group, else by its launcher's variables, else 1."""
    if has_process_group():
        return dist.get_world_size()
    return number_in_environment(SIZE_VARIABLES) or 1


def number_in_environment(names: Sequence[str]) -> int | None:
    """Return the number in the first of these variables that is set to a number; None if none is."""
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def exchanges() -> dict[str, int] | None:
    """Return the number of collectives of each process group so far, and that of messages between two ranks.

    None if ranks may exchange something that is not counted: by a library in `OTHER_LIBRARIES`, by remote procedure
    calls, or by a back end that does not number its collectives.
    """
    rpc = sys.modules.get("torch.distributed.rpc.api")
    has_rpc_agent = getattr(rpc, "_is_current_rpc_agent_set", lambda: False)
    if any(name in sys.modules for name in OTHER_LIBRARIES) or has_rpc_agent():
        return None
    try:
        return dict(messages) | dict(_collectives())
    except Exception:  # a group of the script's own type, or a back end that does not count
        return None


def collectives_between(before: dict[str, int] | None, after: dict[str, int] | None) -> int | None:
    """Return the number of collectives between two counts of `exchanges`; None if either count is None.

    >>> collectives_between({"0 cpu": 3, "between two": 1}, {"0 cpu": 5, "1 cpu": 1, "between two": 4})
    3
    """
    if before is None or after is None:
        return None
    return sum(count - before.get(name, 0) for name, count in after.items() if name != MESSAGES)


def _collectives() -> Iterator[tuple[str, int]]:
    """Yield each process group of several ranks, as its name and a device, with its number of collectives so far.

    Raises `TypeError` for a back end that is not in `COUNTING_BACKENDS`.
    """
    if not has_process_group():
        return
    for group in dist.distributed_c10d._world.pg_map:  # PyTorch has no public list of them
        if group.size() <= 1:
            continue
        # One back end may be that of several devices.
        backends: dict[Any, Any] = {group._get_backend(device): device for device in group._device_types}
        for backend, device in backends.items():
            if type(backend).__name__ not in COUNTING_BACKENDS:
                raise TypeError(backend)
            # PyTorch's type stubs lack the method that reads the number.
            yield f"{group.group_name} {device}", backend._get_sequence_number_for_group()
