"""The events of one capture, whatever profiler recorded them."""

from dataclasses import dataclass, field

import pyarrow as pa

# Times are nanoseconds on the trace's own clock. `process` is the process id. Texts are dictionary-encoded: a capture
# holds millions of events under a few hundred names.
TEXT = pa.dictionary(pa.int32(), pa.string())
_TIMES = [("start_ns", pa.int64()), ("end_ns", pa.int64())]

EVENTS: dict[str, pa.Schema] = {
    # Named ranges that the program pushed and popped.
    "ranges": pa.schema([("process", pa.int64()), ("thread", pa.int64()), ("name", TEXT), *_TIMES]),
    # Calls of the CUDA runtime or driver on the host; `api` is "runtime", "driver", "backtrace" for a row that repeats
    # a call of its own row, or "other". What a call starts on a device carries its `correlation`, a number that is
    # unique within the process only.
    "api": pa.schema(
        [
            ("process", pa.int64()),
            ("thread", pa.int64()),
            ("correlation", pa.int64()),
            ("api", TEXT),
            ("name", TEXT),
            *_TIMES,
        ]
    ),
    # Kernels on a device.
    "kernels": pa.schema(
        [
            ("process", pa.int64()),
            ("device", pa.int64()),
            ("correlation", pa.int64()),
            ("name", TEXT),
            *_TIMES,
        ]
    ),
    # Copies and fills on a device; `operation` is one of OPERATIONS, `host_memory` "pageable" or "pinned" for copies
    # from or to the host as far as that was recorded.
    "memory": pa.schema(
        [
            ("process", pa.int64()),
            ("device", pa.int64()),
            ("operation", TEXT),
            ("host_memory", TEXT),
            ("bytes", pa.int64()),
            *_TIMES,
        ]
    ),
}

OPERATIONS = (
    "host_to_device", "device_to_host", "device_to_device", "peer_to_peer", "host_to_host",
    "unified_host_to_device", "unified_device_to_host", "unified_device_to_device", "memset", "other",
)  # fmt: skip


@dataclass
class Trace:
    """Events by kind (schemas in `EVENTS`); a kind that was not recorded is in `absent`, with the reason.

    `ranks` maps process ids to ranks as far as the trace itself tells.
    """

    events: dict[str, pa.Table]
    absent: dict[str, str] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)

    def why_absent(self, kinds: tuple[str, ...]) -> str:
        """Reason for the first of these kinds that was not recorded."""
        return next((self.absent[kind] for kind in kinds if kind in self.absent), "not recorded")


def joined(traces: list[Trace]) -> Trace:
    """One trace of several files, such as one file per rank.

    A kind that only some files recorded counts as recorded; a kind that none recorded keeps the first reason.
    """
    events = {}
    for kind in EVENTS:
        tables = [trace.events[kind] for trace in traces if kind in trace.events]
        if tables:
            events[kind] = pa.concat_tables(tables).unify_dictionaries()
    absent = {kind: reason for trace in reversed(traces) for kind, reason in trace.absent.items() if kind not in events}
    ranks = {process: rank for trace in traces for process, rank in trace.ranks.items()}
    return Trace(events, absent, ranks)


def rank_marks(names: list[str], processes: list[int]) -> dict[int, int]:
    """Ranks by process id, read from marks named `rank:N`."""
    ranks = {}
    for name, process in zip(names, processes, strict=True):
        prefix, _, number = name.partition(":")
        if prefix == "rank" and number.isdecimal():
            ranks[process] = int(number)
    return ranks
