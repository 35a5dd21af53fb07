"""Where the events of each kind lie in an SQLite export of Nsight Systems, and what its numbers stand for."""

from typing import NamedTuple

# eventClass of CUPTI_ACTIVITY_KIND_RUNTIME, as ENUM_NSYS_EVENT_CLASS lists it. A backtrace row repeats a call that
# has a row of its own.
API_CLASSES = {0: "runtime", 1: "driver", 67: "backtrace"}

MEMSET = -1  # stands in the place of a copyKind
# copyKind, as ENUM_CUDA_MEMCPY_OPER of an export lists it; arrays count as device memory.
COPY_KINDS = {
    **dict.fromkeys((1, 3), "host_to_device"),
    **dict.fromkeys((2, 4), "device_to_host"),
    **dict.fromkeys((5, 6, 7, 8), "device_to_device"),
    9: "host_to_host",
    10: "peer_to_peer",
    11: "unified_host_to_device",
    12: "unified_device_to_host",
    13: "unified_device_to_device",
    MEMSET: "memset",
}
# srcKind and dstKind, as ENUM_CUDA_MEM_KIND lists them.
HOST_MEMORY = {0: "pageable", 1: "pinned"}

Columns = tuple[str | int | None, ...]


class Table(NamedTuple):
    """How the events of a kind lie in one table: columns or constants of each group column, and of its numbers."""

    name: str
    groups: dict[str, Columns]
    numbers: dict[str, str]


_ON_DEVICE: dict[str, Columns] = {"process": ("globalPid",), "device": ("deviceId",)}
_STREAM: dict[str, Columns] = {"stream": ("streamId",)}
_HOST_TIMES = {"start": "start", "end": "end"}
_TIMES = {"correlation": "correlationId", "start": "start", "end": "end"}

TABLES: dict[str, tuple[Table, ...]] = {
    "api": (
        Table(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {"process": ("globalTid",), "api": ("eventClass",), "name": ("nameId",), "thread": ("globalTid",)},
            _TIMES,
        ),
    ),
    "kernels": (Table("CUPTI_ACTIVITY_KIND_KERNEL", {**_ON_DEVICE, "name": ("demangledName",), **_STREAM}, _TIMES),),
    "host_calls": (
        Table("OSRT_API", {"process": ("globalTid",), "name": ("nameId",), "thread": ("globalTid",)}, _HOST_TIMES),
        *(
            Table(name, {"process": ("globalTid",), "name": ("textId",), "thread": ("globalTid",)}, _HOST_TIMES)
            for name in ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
        ),
    ),
    "graphs": (Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {**_ON_DEVICE, **_STREAM}, _TIMES),),
    "memory": (
        Table(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {**_ON_DEVICE, "operation": ("copyKind",), "host_memory": ("copyKind", "srcKind", "dstKind"), **_STREAM},
            {"bytes": "bytes", **_TIMES},
        ),
        Table(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            {**_ON_DEVICE, "operation": (MEMSET,), "host_memory": (MEMSET, None, None), **_STREAM},
            {"bytes": "bytes", **_TIMES},
        ),
    ),
}
# Columns without which a table says nothing.
NEEDED = {
    "start", "end", "globalTid", "globalPid", "nameId", "demangledName", "copyKind", "deviceId",
}  # fmt: skip


def process_of(identity: int) -> int:
    """Process id in a globalTid or globalPid; of one, or of an array."""
    return (identity >> 24) & 0xFFFFFF


def thread_of(identity: int) -> int:
    """Thread id in a globalTid; of one, or of an array."""
    return identity & 0xFFFFFF
