"""Collectives that the host carries out, such as gloo's, as PyTorch's profiler records them.

PyTorch marks each as a range named `gloo:all_reduce`, on the thread that does the work, from the moment at which this
rank joins until it is done. NCCL's ranges of that form only launch kernels, so they are not meant here.
"""

import re

import numpy as np

from multicard.trace.collect import Events
from multicard.trace.kernel_classes import collective_call
from multicard.trace.messages import FIELDS
from multicard.trace.model import MISSING

_RANGE = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
BARRIER = "barrier"


def collective_of(name: str) -> str | None:
    """Return the collective that a range of this name carries out on the host; None for any other range.

    >>> collective_of("gloo:all_reduce"), collective_of("gloo:barrier"), collective_of("nccl:all_reduce")
    ('all_reduce', 'barrier', None)
    """
    found = _RANGE.fullmatch(name)
    if found is None:
        return None
    return BARRIER if found[1] == BARRIER else collective_call(found[1])


def host_collectives(ranges: Events) -> Events | None:
    """Return the collectives among ranges in the form of communication kernels without a device; None without any.

    `ranges`: with process, name, start and duration.
    """
    collectives = [collective_of(name) for _, name in ranges.values("name")]
    if not any(collectives):
        return None
    found = ranges.where(ranges.mask(collective is not None for collective in collectives))
    groups = [
        (trace, process, None, None, name, "communication", collective_of(name), None, None)
        for trace, process, name in found.values("process", "name")
    ]
    missing = np.full(len(found.code), MISSING, np.int64)
    arrays = found.arrays | {"bytes": missing, "sequence": missing}
    places = {(*place, None): own for place, own in found.places.items()}
    return Events(FIELDS, groups, found.code, arrays, places)
