"""Collectives that the host carries out, such as gloo's, as PyTorch's profiler records them.

PyTorch marks each of them as a range with a name such as `gloo:all_reduce`, on the thread that does the work, from the
moment at which this rank joins until the collective is done. A range such as `nccl:all_reduce` does not count here,
because it only covers the launch of a kernel.
"""

import re

import numpy as np

from multicard.trace.events import Events
from multicard.trace.kernel_classes import collective_of_call
from multicard.trace.messages import COMMUNICATION_FIELDS
from multicard.trace.model import MISSING

_RANGE = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
BARRIER = "barrier"


def collective_of(name: str) -> str | None:
    """Return the collective that the host carries out in a range of this name; None for any other range.

    >>> collective_of("gloo:all_reduce"), collective_of("gloo:barrier"), collective_of("nccl:all_reduce")
    ('all_reduce', 'barrier', None)
    """
    match = _RANGE.fullmatch(name)
    if match is None:
        return None
    operation = match[1]
    return BARRIER if operation == BARRIER else collective_of_call(operation)


def host_collectives(ranges: Events) -> Events | None:
    """Return the collectives among ranges, in the form of communication kernels; None if there are none.

    Their device, stream, number of ranks and communicator are None, and their bytes and sequence numbers are `MISSING`.

    `ranges`: with process, name, start and duration.
    """
    is_collective = [collective_of(name) is not None for name in ranges.group_field("name")]
    if not any(is_collective):
        return None
    chosen = ranges.where(ranges.mask(is_collective))
    groups = [
        (trace, process, None, None, name, "communication", collective_of(name), None, None)
        for trace, process, name in chosen.group_fields("process", "name")
    ]
    missing = np.full(len(chosen.code), MISSING, np.int64)
    arrays = chosen.arrays | {"bytes": missing, "sequence": missing}
    locations = {(*owner, None): part for owner, part in chosen.locations.items()}
    return Events(COMMUNICATION_FIELDS, groups, chosen.code, arrays, locations)
