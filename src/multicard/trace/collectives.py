"""Size and bus bandwidth of collectives, as far as a trace holds the sizes of messages."""

from collections.abc import Callable
from typing import Any

from multicard.trace.collect import Events

# Bus bandwidth over algorithm bandwidth for n ranks, and the size that the algorithm bandwidth counts over the size
# of one rank's message: NVIDIA's nccl-tests, doc/PERFORMANCE.md.
_BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n * n,
    "reduce_scatter": lambda n: (n - 1) / n * n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def with_messages(rows: list[dict[str, Any]], messages: Events | None) -> list[dict[str, Any]]:
    """Add what the messages of each process and collective tell to the rows of its communication kernels.

    The bus bandwidth is given where each kernel has one message and the number of ranks is known and always the same:
    one that a rank's link would need to have, whatever the number of ranks.
    """
    if messages is None:
        return rows
    sizes: dict[tuple[int, int, str], tuple[int, int, set[int | None]]] = {}
    for code, (trace, process, kind, ranks) in enumerate(messages.groups):
        mine = messages.code == code
        calls, size, of_ranks = sizes.get((trace, process, kind), (0, 0, set()))
        found = (calls + int(mine.sum()), size + int(messages.arrays["bytes"][mine].sum()), of_ranks | {ranks})
        sizes[trace, process, kind] = found
    devices: dict[tuple[int, int, str | None], int] = {}
    for row in rows:
        key = (row["trace"], row["process"], row["collective"])
        devices[key] = devices.get(key, 0) + 1
    for row in rows:
        key = (row["trace"], row["process"], row["collective"])
        if key not in sizes or devices[key] > 1:  # messages do not tell the device
            continue
        calls, size, of_ranks = sizes[key]
        row |= {"messages": calls, "message_bytes": size}
        if len(of_ranks) == 1 and None not in of_ranks:
            (ranks,) = of_ranks
            row["ranks"] = ranks
            factor = _BUS.get(row["collective"])
            if factor and ranks > 0 and calls == row["calls"] and row["total_s"] > 0:
                row["bus_bandwidth_bytes_per_s"] = size * factor(ranks) / row["total_s"]
    return rows
