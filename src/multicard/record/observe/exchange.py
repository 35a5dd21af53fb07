"""Whether ranks exchange anything with each other, by the counters of PyTorch's process groups."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

COUNTING = ("ProcessGroupGloo", "ProcessGroupNCCL")  # back ends that number all their collectives
# By these, ranks exchange what no process group of PyTorch sees.
OTHER_WAYS = ("horovod", "mpi4py", "byteps", "bagua", "hivemind", "torch_xla")
BETWEEN_TWO = ("send", "recv", "recv_anysource")  # which NCCL numbers apart from collectives


messages = Counter[str]()  # between two ranks, of this process so far


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


def note_message() -> None:
    """Count a message between two ranks."""
    messages["between two"] += 1


def functions_of_messages() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """The class, name and function of what sends or receives one."""
    if dist.is_available():
        for name in BETWEEN_TWO:
            yield dist.ProcessGroup, name, getattr(dist.ProcessGroup, name)
