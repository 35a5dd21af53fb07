"""Collectives: the sizes of their messages and their bandwidth."""

from collections.abc import Callable
from typing import Any

import numpy as np

from multicard.trace.collect import Events
from multicard.trace.model import MISSING, Integers

# Bus bandwidth over algorithm bandwidth for n ranks, and the size that the algorithm bandwidth counts over the size
# of one rank's message: NVIDIA's nccl-tests, doc/PERFORMANCE.md.
_BUS: dict[str | None, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n * n,
    "reduce_scatter": lambda n: (n - 1) / n * n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


class CannotTell(Exception):
    """The trace does not have what an answer needs; the message names it."""


def bus_bandwidth(collective: str | None, message_bytes: float, ranks: int, seconds: float) -> float | None:
    """Bytes per second that each rank's link would need to carry for such messages in that time, as nccl-tests has it.

    None for a collective that has no definition, and without ranks or time.

    >>> bus_bandwidth("all_reduce", 4000, 4, 0.008)
    750000.0
    """
    factor = _BUS.get(collective)
    return message_bytes * factor(ranks) / seconds if factor and ranks > 0 and seconds > 0 else None


def message_columns(kernels: Events, own: Integers, transfer: Integers) -> dict[str, Any]:
    """Return what the messages of some kernels of one collective tell, by column.

    Bytes are those of the kernels whose messages are known, and `messages` is the number of these. The bus bandwidth is
    over the time in which these transferred, with all ranks there, or, where that is not known of all, over their whole
    durations: then it is a lower bound. It is None if the number of ranks is not known of all.

    `kernels`: as `messages.communication_kernels` gives them; `own`: positions of the kernels; `transfer`: nanoseconds
    of each of `kernels` after all ranks had joined, or `MISSING`.
    """
    columns: dict[str, Any] = {}
    matched = transfer.take(own)
    if (matched != MISSING).all():
        columns["transfer_s"] = int(matched.sum()) / 1e9
    sized = own[kernels.arrays["bytes"].take(own) != MISSING]
    if not len(sized):
        return columns
    size = kernels.arrays["bytes"].take(sized)
    columns |= {"messages": len(sized), "message_bytes": int(size.sum())}
    groups = kernels.values("collective", "ranks")
    codes = np.unique(kernels.code.take(sized)).tolist()
    rank_counts = {groups[code][2] for code in codes}
    if len(rank_counts) == 1:
        columns["ranks"] = next(iter(rank_counts))
    matched = transfer.take(sized)
    durations = matched if (matched != MISSING).all() else kernels.arrays["duration"].take(sized).astype(np.int64)
    seconds = int(durations.sum()) / 1e9
    rates = []
    for code in codes:
        _, collective, ranks = groups[code]
        message_bytes = int(size[kernels.code.take(sized) == code].sum())
        rates.append(bus_bandwidth(collective, message_bytes, ranks or 0, seconds))
    columns["bus_bandwidth_bytes_per_s"] = None if None in rates else sum(rates)
    return columns


def by_message_size(kernels: Events) -> list[tuple[dict[str, Any], Integers]]:
    """Return the kernels of each device, collective, communicator and size: columns that tell these, and positions.

    `kernels`: as `messages.communication_kernels` gives them.

    Raises `CannotTell` if no kernel has a message.
    """
    sized = np.flatnonzero(kernels.arrays["bytes"] != MISSING)
    if not len(sized):
        raise CannotTell("no collective has one message for each of its kernels")
    codes: dict[tuple[Any, ...], list[int]] = {}
    names = ("trace", "process", "device", "collective", "group", "ranks")
    for code, key in enumerate(kernels.values("process", "device", "collective", "communicator", "ranks")):
        codes.setdefault(key, []).append(code)
    found = []
    for key, own_codes in sorted(codes.items(), key=str):
        own = sized[np.isin(kernels.code.take(sized), own_codes)]
        if not len(own):
            continue
        size = kernels.arrays["bytes"].take(own)
        order = np.argsort(size, kind="stable")
        sizes, firsts = np.unique(size.take(order), return_index=True)
        for each, positions in zip(sizes.tolist(), np.split(own.take(order), firsts[1:]), strict=True):
            found.append((dict(zip(names, key, strict=True)) | {"size_bytes": each}, positions))
    return found
