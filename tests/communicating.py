"""Small captures of ranks that only communicate, whose times can be checked by hand."""

import json
import sqlite3
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from synthetic import PID, RUNTIME, global_id, put

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
BFLOAT16_BYTES = 2


class Call(NamedTuple):
    """A collective of PyTorch's profiler: start and duration of its kernel in microseconds, and what it notes."""

    start: float
    duration: float
    notes: dict[str, Any]  # the arguments of the event, beside device, stream and correlation
    kernel: str = ALL_REDUCE
    stream: int = 20


def note(
    collective: str, size: int, ranks: int, group: str | None = None, sequence: int | None = None
) -> dict[str, Any]:
    """Return what PyTorch notes on the kernel of a collective with a message of so many bytes."""
    elements = size // BFLOAT16_BYTES
    notes: dict[str, Any] = {"Collective name": collective, "In msg nelems": elements, "Out msg nelems": elements}
    notes |= {"Group size": ranks, "dtype": "BFloat16"}
    notes |= {} if group is None else {"Process Group Name": group}
    return notes if sequence is None else notes | {"Seq": sequence}


def pytorch_rank(path: Path, calls: Iterable[Call], rank: int = 0, base: int | None = None) -> Path:
    """Write the trace of one rank of PyTorch's profiler; `base` is the moment from which its clock counts."""
    events: list[dict[str, Any]] = []
    for number, call in enumerate(calls):
        launch = {"name": "cudaLaunchKernelExC", "cat": "cuda_runtime", "ts": 0.001 * number, "dur": 0.001}
        kernel = {"name": call.kernel, "cat": "kernel", "ts": call.start, "dur": call.duration}
        of_device = {"correlation": number, "device": rank, "stream": call.stream}
        events.append(launch | {"ph": "X", "pid": 100 + rank, "tid": 1, "args": {"correlation": number}})
        events.append(kernel | {"ph": "X", "pid": rank, "tid": call.stream, "args": of_device | call.notes})
    document = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 8}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document if base is None else document | {"baseTimeNanoseconds": base}))
    return path


class NcclCall(NamedTuple):
    """A call of NCCL that Nsight Systems recorded with its payload, in nanoseconds."""

    start: int
    end: int
    communicator: int
    size: int
    name: str = "ncclAllReduce"
    thread: int = 1


class Launched(NamedTuple):
    """A kernel and the call that launched it, in nanoseconds; None if the call was not recorded."""

    call: int | None
    start: int
    end: int
    stream: int
    thread: int = 1


def nccl_export(path: Path, calls: Iterable[NcclCall], kernels: Iterable[Launched], ranks: dict[int, int]) -> Path:
    """Write an export of one process with all-reduces on one GPU; `ranks` is the number of ranks by communicator.

    The schema of the payloads is that of real exports (numbers, names, types and offsets).
    """
    made, sent = 16777218, 16777223  # schemas of ncclCommInitRank and of ncclAllReduce
    entries = [
        (1, made, "NCCL communicator ID", None), (1, made, "No. of ranks", 8),
        (1, sent, "NCCL communicator ID", None), (1, sent, "Message size [bytes]", 8),
    ]  # fmt: skip

    def payload(schema: int, content: bytes) -> bytes:
        return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(content), 32 + len(content)) + content

    # A communicator may be made before the capture begins; here it is made at its beginning.
    ranges = [
        (0, 1, "ncclCommInitRank", 1, payload(made, struct.pack("<Qiiii", communicator, count, 0, 0, 0)))
        for communicator, count in ranks.items()
    ]
    ranges += [
        (
            call.start,
            call.end,
            call.name,
            call.thread,
            payload(sent, struct.pack("<QQQ", call.communicator, call.size, 0)),
        )
        for call in calls
    ]
    launched = list(enumerate(kernels))
    with closing(sqlite3.connect(path)) as db:
        put(db, "StringIds", "id INTEGER PRIMARY KEY, value TEXT", [(1, ALL_REDUCE), (2, "cudaLaunchKernelExC_v11060")])
        put(db, "NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId INT, schemaId INT, name TEXT, offset INT", entries)
        put(
            db, "NVTX_EVENTS",
            "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT, domainId INT, binaryData BLOB",
            [(start, end, 59, name, None, global_id(PID, tid), 1, data) for start, end, name, tid, data in ranges],
        )  # fmt: skip
        put(
            db, "CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME,
            [(k.call, k.call + 1, 0, global_id(PID, k.thread), n, 2) for n, k in launched if k.call is not None],
        )  # fmt: skip
        put(
            db, "CUPTI_ACTIVITY_KIND_KERNEL",
            "start INT, end INT, deviceId INT, globalPid INT, demangledName INT, correlationId INT, streamId INT",
            [(k.start, k.end, 0, global_id(PID), 1, n, k.stream) for n, k in launched],
        )  # fmt: skip
        db.commit()
    return path
