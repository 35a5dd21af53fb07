"""Tables and columns that hold the events of each kind in an SQLite export of Nsight Systems, and what numbers mean."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from multicard.trace.model import Integers

Identity = TypeVar("Identity", int, Integers)

# eventClass of CUPTI_ACTIVITY_KIND_RUNTIME, as ENUM_NSYS_EVENT_CLASS lists it. A backtrace row repeats a call that
# has a row of its own.
API_CLASSES: Mapping[int | None, str] = {0: "runtime", 1: "driver", 67: "backtrace"}

# copyKind, as ENUM_CUDA_MEMCPY_OPER of an export lists it. Arrays count as device memory. So the second number of each
# pair, a copy between the host and an array, counts as a copy between host and device.
HOST_TO_DEVICE = (1, 3)
DEVICE_TO_HOST = (2, 4)
# Not a copyKind of an export. It stands for the operation of all rows in the table of fills, which has no such column.
MEMSET = -1
COPY_KINDS: Mapping[int | None, str] = {
    **dict.fromkeys(HOST_TO_DEVICE, "host_to_device"),
    **dict.fromkeys(DEVICE_TO_HOST, "device_to_host"),
    **dict.fromkeys((5, 6, 7, 8), "device_to_device"),
    9: "host_to_host",
    10: "peer_to_peer",
    11: "unified_host_to_device",
    12: "unified_device_to_host",
    13: "unified_device_to_device",
    MEMSET: "memset",
}
# srcKind and dstKind, as ENUM_CUDA_MEM_KIND lists them.
_HOST_MEMORY: Mapping[int | None, str] = {0: "pageable", 1: "pinned"}

# Where the values of a group column come from: from the column of this name; a number that all rows share, if the table
# has no such column; or None if the rows have no value.
Column = str | int | None


@dataclass(frozen=True)
class EventTable:
    """A table of an export that holds events of a kind.

    `groups`: for each group column of the kind (`KINDS` in `model`), the columns of the table that it is made of.
    `numbers`: for each number of the kind, the column of the table that holds it.
    """

    name: str
    groups: Mapping[str, tuple[Column, ...]]
    numbers: Mapping[str, str]


_ON_DEVICE: dict[str, tuple[Column, ...]] = {"process": ("globalPid",), "device": ("deviceId",)}
_STREAM: dict[str, tuple[Column, ...]] = {"stream": ("streamId",)}
_HOST_TIMES = {"start": "start", "end": "end"}
_TIMES = {"correlation": "correlationId", "start": "start", "end": "end"}

TABLES: Mapping[str, tuple[EventTable, ...]] = {
    "api": (
        EventTable(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {"process": ("globalTid",), "api": ("eventClass",), "name": ("nameId",), "thread": ("globalTid",)},
            _TIMES,
        ),
    ),
    "kernels": (
        EventTable("CUPTI_ACTIVITY_KIND_KERNEL", {**_ON_DEVICE, "name": ("demangledName",), **_STREAM}, _TIMES),
    ),
    "host_calls": (
        EventTable("OSRT_API", {"process": ("globalTid",), "name": ("nameId",), "thread": ("globalTid",)}, _HOST_TIMES),
        *(
            EventTable(name, {"process": ("globalTid",), "name": ("textId",), "thread": ("globalTid",)}, _HOST_TIMES)
            for name in ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
        ),
    ),
    "graphs": (EventTable("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", {**_ON_DEVICE, **_STREAM}, _TIMES),),
    "memory": (
        EventTable(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {**_ON_DEVICE, "operation": ("copyKind",), "host_memory": ("copyKind", "srcKind", "dstKind"), **_STREAM},
            {"bytes": "bytes", **_TIMES},
        ),
        EventTable(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            {**_ON_DEVICE, "operation": (MEMSET,), "host_memory": (MEMSET, None, None), **_STREAM},
            {"bytes": "bytes", **_TIMES},
        ),
    ),
}
# If a table of `TABLES` names one of these columns and lacks it in an export, the schema of the export is not known,
# and the table is not read. Other columns may be absent, because older exports do not have them.
REQUIRED_COLUMNS = {
    "start", "end", "globalTid", "globalPid", "nameId", "demangledName", "copyKind", "deviceId",
}  # fmt: skip


def host_memory(copy_kind: int | None, source: int | None, target: int | None) -> str | None:
    """Return the kind of host memory of a copy, "pageable" or "pinned", from its copyKind, srcKind and dstKind.

    Return None if the copyKind is in neither `HOST_TO_DEVICE` nor `DEVICE_TO_HOST`, or the kind of the host memory is
    another one or was not recorded.
    """
    if copy_kind in HOST_TO_DEVICE:
        return _HOST_MEMORY.get(source)
    if copy_kind in DEVICE_TO_HOST:
        return _HOST_MEMORY.get(target)
    return None


def process_of(identity: Identity) -> Identity:
    """Return the process id that a globalTid or globalPid contains; for an array, that of each element."""
    return (identity >> 24) & 0xFFFFFF


def thread_of(identity: Identity) -> Identity:
    """Return the thread id that a globalTid contains; for an array, that of each element."""
    return identity & 0xFFFFFF
