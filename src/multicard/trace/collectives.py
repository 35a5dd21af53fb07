"""Collectives: the sizes of their messages and their bandwidth."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from multicard.core.values import Row
from multicard.trace.events import Events
from multicard.trace.model import MISSING, Integers

# For n ranks: the bytes that each rank's link must carry, divided by the bytes of one rank's message (NVIDIA's
# nccl-tests, doc/PERFORMANCE.md). For all_gather and reduce_scatter, nccl-tests divides by the bytes of all n messages
# together and so has the factor (n - 1) / n. Here it is multiplied by n, because the divisor is one message.
_BUS: dict[str | None, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n * n,
    "reduce_scatter": lambda n: (n - 1) / n * n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


class CannotTell(Exception):
    """Raised if the trace lacks what an answer needs; the message names what is missing."""


def bus_bandwidth(collective: str | None, message_bytes: float, ranks: int, seconds: float) -> float | None:
    """Return the bus bandwidth of a collective: the bytes per second that each rank's link must carry.

    It is that of nccl-tests. `message_bytes`: bytes of one rank's message, or of several messages together. `seconds`:
    the time in which they are transferred. None if the collective is not in `_BUS`, or if there are no ranks or no
    time.

    An all-reduce among 4 ranks moves 2 · 3/4 of the 4000 bytes over each link, here in 8 ms:

    >>> bus_bandwidth("all_reduce", 4000, 4, 0.008)
    750000.0
    """
    factor = _BUS.get(collective)
    if factor is None or ranks <= 0 or seconds <= 0:
        return None
    return message_bytes * factor(ranks) / seconds


def message_columns(kernels: Events, positions: Integers, transfer: Integers) -> Row:
    """Return columns about the messages of some kernels of one collective. Columns that are unknown are left out.

    - `transfer_s`: seconds from the moment at which all ranks had joined, summed over the kernels. Left out if this
      time is unknown for any of the kernels.
    - `messages`: the number of kernels whose message has a known size. If there are none, this column and those below
      are left out.
    - `message_bytes`: the sum of the known sizes.
    - `ranks`: the number of ranks that take part, or None if it was not recorded. Left out if it differs between the
      messages of known size.
    - `bus_bandwidth_bytes_per_s`: the bus bandwidth of the messages of known size, in the seconds for which their
      kernels transferred after all ranks had joined. If this time is unknown for any of them, the whole durations of
      the kernels take its place, and the bus bandwidth is a lower bound. None if the number of ranks is unknown for any
      of the messages, if the collective is not in `_BUS`, or if the time is 0.

    `kernels`: as `messages.communication_kernels` returns them. `positions`: those of the kernels that are meant.
    `transfer`: for each of `kernels`, the nanoseconds after all ranks had joined, or `MISSING`.
    """
    columns: Row = {}
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
    """Return the bus bandwidth in bytes/s of the messages of some kernels that took so many seconds altogether.

    None if it is unknown for any of the messages.
    """
    groups = kernels.group_fields("collective", "ranks")
    sizes = kernels.arrays["bytes"].take(positions)
    codes = kernels.codes(positions)
    bandwidths: list[float] = []
    # All kernels of a group have the same collective and number of ranks.
    for code in np.unique(codes).tolist():
        _, collective, rank_count = groups[code]
        message_bytes = int(sizes[codes == code].sum())
        bandwidth = bus_bandwidth(collective, message_bytes, rank_count or 0, seconds)
        if bandwidth is None:
            return None
        bandwidths.append(bandwidth)
    return sum(bandwidths)


class SizedMessages(NamedTuple):
    """Communication kernels whose messages have one size and are alike in all else, made by `by_message_size`.

    `collective`, `communicator` and `ranks` are None where they were not recorded. `positions`: those of the kernels.
    """

    trace: int
    process: int
    device: int | None
    collective: str | None
    communicator: str | None
    ranks: int | None
    size_bytes: int
    positions: Integers


def by_message_size(kernels: Events) -> list[SizedMessages]:
    """Return the kernels of each message size of each device, collective, communicator and number of ranks.

    Kernels whose message has no known size are left out. `kernels`: as `messages.communication_kernels` returns them.

    Raises `CannotTell` if no kernel has a message of known size.
    """
    sized = np.flatnonzero(kernels.arrays["bytes"] != MISSING)
    if not len(sized):
        raise CannotTell("no collective has one message for each of its kernels")
    codes_of_key: dict[tuple[Any, ...], list[int]] = {}
    for code, key in enumerate(kernels.group_fields("process", "device", "collective", "communicator", "ranks")):
        codes_of_key.setdefault(key, []).append(code)

    messages: list[SizedMessages] = []
    for key, codes in sorted(codes_of_key.items(), key=str):
        positions = kernels.of_groups(codes, sized)
        sizes = kernels.arrays["bytes"].take(positions)
        trace, process, device, collective, communicator, rank_count = key
        for size, positions_of_size in _by_value(sizes, positions):
            messages_of_size = SizedMessages(
                trace=trace,
                process=process,
                device=device,
                collective=collective,
                communicator=communicator,
                ranks=rank_count,
                size_bytes=size,
                positions=positions_of_size,
            )
            messages.append(messages_of_size)
    return messages


def _by_value(values: Integers, positions: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield each distinct value in rising order, with the positions that have it: `values[i]` is at `positions[i]`.

    >>> [(size, chosen.tolist()) for size, chosen in _by_value(np.array([8, 4, 8]), np.array([20, 30, 40]))]
    [(4, [30]), (8, [20, 40])]
    """
    order = np.argsort(values, kind="stable")
    distinct, firsts = np.unique(values.take(order), return_index=True)
    parts = np.split(positions.take(order), firsts[1:])
    # Without any positions `split` still returns one empty part.
    yield from zip(distinct.tolist(), parts, strict=False)
