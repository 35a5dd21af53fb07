"""Collectives: the sizes of their messages and their bandwidth."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multicard.trace.events import Events
from multicard.trace.model import MISSING, Integers

# For n ranks, the bytes that each rank's link must carry, over the bytes of one rank's message: NVIDIA's nccl-tests,
# doc/PERFORMANCE.md. For the two with "* n" its factor (n - 1) / n is of what all ranks have together, n messages.
_BUS: dict[str | None, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n * n,
    "reduce_scatter": lambda n: (n - 1) / n * n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


class CannotTell(Exception):
    """Raised if the trace does not have what an answer needs; the message names it."""


def bus_bandwidth(collective: str | None, message_bytes: float, ranks: int, seconds: float) -> float | None:
    """Return the bytes per second that each rank's link must carry for such messages in that time, as nccl-tests do.

    None for a collective that has no definition, and without ranks or time.

    An all-reduce among 4 ranks moves 2 · 3/4 of the 4000 bytes over each link, here in 8 ms:

    >>> bus_bandwidth("all_reduce", 4000, 4, 0.008)
    750000.0
    """
    factor = _BUS.get(collective)
    if factor is None or ranks <= 0 or seconds <= 0:
        return None
    return message_bytes * factor(ranks) / seconds


def message_columns(kernels: Events, positions: Integers, transfer: Integers) -> dict[str, Any]:
    """Return the columns on the messages of some kernels of one collective.

    Bytes are those of the kernels whose messages are known, and `messages` is the number of these. The bus bandwidth is
    over the time in which these transferred, with all ranks there, or, where that is unknown of any, over their whole
    durations: then it is a lower bound. It is None if the number of ranks is unknown of any.

    `kernels`: as `messages.communication_kernels` returns them; `positions`: those of the kernels; `transfer`:
    nanoseconds of each of `kernels` after all ranks had joined, or `MISSING`.
    """
    columns: dict[str, Any] = {}
    transfer_of_all = transfer.take(positions)
    if (transfer_of_all != MISSING).all():
        columns["transfer_s"] = int(transfer_of_all.sum()) / 1e9
    has_size = kernels.arrays["bytes"].take(positions) != MISSING
    sized = positions[has_size]
    if not len(sized):
        return columns
    columns["messages"] = len(sized)
    columns["message_bytes"] = int(kernels.arrays["bytes"].take(sized).sum())
    groups = kernels.group_fields("collective", "ranks")
    rank_counts = set()
    for code in np.unique(kernels.codes(sized)).tolist():
        _, _, rank_count = groups[code]
        rank_counts.add(rank_count)
    if len(rank_counts) == 1:
        columns["ranks"] = rank_counts.pop()

    durations = transfer.take(sized)
    if (durations == MISSING).any():
        durations = kernels.number("duration", sized)
    columns["bus_bandwidth_bytes_per_s"] = _total_bandwidth(kernels, sized, int(durations.sum()) / 1e9)
    return columns


def _total_bandwidth(kernels: Events, positions: Integers, seconds: float) -> float | None:
    """Return the bus bandwidth of the messages of some kernels, over so many seconds; None if it is unknown of any."""
    groups = kernels.group_fields("collective", "ranks")
    sizes = kernels.arrays["bytes"].take(positions)
    codes = kernels.codes(positions)
    bandwidths: list[float] = []
    # The collective and the number of ranks are those of a group.
    for code in np.unique(codes).tolist():
        _, collective, rank_count = groups[code]
        message_bytes = int(sizes[codes == code].sum())
        bandwidth = bus_bandwidth(collective, message_bytes, rank_count or 0, seconds)
        if bandwidth is None:
            return None
        bandwidths.append(bandwidth)
    return sum(bandwidths)


def by_message_size(kernels: Events) -> list[tuple[dict[str, Any], Integers]]:
    """Return the kernels of each device, collective, communicator and size: these columns, and the positions.

    `kernels`: as `messages.communication_kernels` returns them.

    Raises `CannotTell` if no kernel has a message.
    """
    sized = np.flatnonzero(kernels.arrays["bytes"] != MISSING)
    if not len(sized):
        raise CannotTell("no collective has one message for each of its kernels")
    codes_of_key: dict[tuple[Any, ...], list[int]] = {}
    for code, key in enumerate(kernels.group_fields("process", "device", "collective", "communicator", "ranks")):
        codes_of_key.setdefault(key, []).append(code)

    rows: list[tuple[dict[str, Any], Integers]] = []
    for key, codes in sorted(codes_of_key.items(), key=str):
        positions = kernels.of_groups(codes, sized)
        sizes = kernels.arrays["bytes"].take(positions)
        trace, process, device, collective, communicator, rank_count = key
        for size, positions_of_size in _by_value(sizes, positions):
            columns = {
                "trace": trace,
                "process": process,
                "device": device,
                "collective": collective,
                "group": communicator,
                "ranks": rank_count,
                "size_bytes": size,
            }
            rows.append((columns, positions_of_size))
    return rows


def _by_value(values: Integers, positions: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield each value in rising order, and the positions that have it.

    >>> [(size, chosen.tolist()) for size, chosen in _by_value(np.array([8, 4, 8]), np.array([20, 30, 40]))]
    [(4, [30]), (8, [20, 40])]
    """
    order = np.argsort(values, kind="stable")
    distinct, firsts = np.unique(values.take(order), return_index=True)
    parts = np.split(positions.take(order), firsts[1:])
    # Without any positions `split` still returns one empty part.
    yield from zip(distinct.tolist(), parts, strict=False)
