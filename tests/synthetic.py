"""Small synthetic captures whose sums can be checked by hand."""

import gzip
import json
import sqlite3
import struct
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

MS = 1_000_000
PID, OTHER = 4242, 4243
RANGES = [  # of the process with CUDA work, in milliseconds
    (0, 10, "step"), (1, 5, "forward"), (5, 10, "backward"),
    (20, 30, "step"), (21, 25, "forward"), (25, 30, "backward"), (12, 13, "forward"),
]  # fmt: skip
RUNTIME = "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT"
KERNEL = "start INT, end INT, deviceId INT, globalPid INT, demangledName INT, correlationId INT"


def global_id(pid: int, tid: int = 0) -> int:
    """Identity of a process or thread as nsys encodes it."""
    return (1 << 48) | (pid << 24) | tid


def put(db: sqlite3.Connection, table: str, columns: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Make a table with these rows."""
    db.execute(f"CREATE TABLE {table} ({columns})")
    db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns.split(',')))})", rows)


def nsys_export(path: Path, text_column: bool = True, cuda: bool = True, other_calls: bool = False) -> Path:
    """Write a database as nsys exports it: two processes, one of them with CUDA work.

    Process 4242 (rank 1): two steps of 10 ms, forward 4 ms and backward 5 ms in each; 3 launches of 1, 2 and 6 ms;
    kernels of 3 and 5 ms under one name, started by the first and second launch; copies to the device of 1 and 2 ms,
    100 bytes from pageable and 300 from pinned memory; a memset. Process 4243 (rank 0): one step of 20 ms and,
    with `other_calls`, a call with the correlation id of the second launch.
    """
    strings = ["forward", "backward", "step", "cudaLaunchKernel_v7000", "gemm", "rank:1", "rank:0"]
    marks = [(*each, PID, 59) for each in RANGES]
    marks += [(0, 20, "step", OTHER, 59), (28, None, "step", OTHER, 59)]  # the last was still open at the end
    marks += [(0, None, "rank:1", PID, 34), (0, None, "rank:0", OTHER, 34)]
    with closing(sqlite3.connect(path)) as db:
        put(db, "StringIds", "id INTEGER PRIMARY KEY, value TEXT", enumerate(strings, start=1))
        put(
            db, "NVTX_EVENTS", "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT",
            [
                (start * MS, None if end is None else end * MS, kind, *((name, None) if text_column else
                 (None, 1 + strings.index(name))), global_id(pid, pid + 1))
                for start, end, name, pid, kind in marks
            ],
        )  # fmt: skip
        if cuda:
            calls = [(0, 1, PID, 0), (2, 4, PID, 1), (5, 11, PID, 2)] + [(3, 4, OTHER, 1)] * other_calls
            put(
                db, "CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME,
                [(start * MS, end * MS, 0, global_id(pid, 1), number, 4) for start, end, pid, number in calls],
            )  # fmt: skip
            place = (2, global_id(PID))
            kernels = [(1 * MS, 4 * MS, *place, 5, 0), (6 * MS, 11 * MS, *place, 5, 1)]
            put(db, "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, kernels)
            put(
                db, "CUPTI_ACTIVITY_KIND_MEMCPY",
                "start INT, end INT, deviceId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT",
                [(0, 1 * MS, *place, 100, 1, 0, 2), (3 * MS, 5 * MS, *place, 300, 1, 1, 2)],
            )  # fmt: skip
            columns = "start INT, end INT, deviceId INT, globalPid INT, bytes INT"
            put(db, "CUPTI_ACTIVITY_KIND_MEMSET", columns, [(0, 500_000, *place, 64)])
        db.commit()
    return path


def add_messages(path: Path) -> None:
    """Add NCCL's own ranges to `nsys_export`: a communicator of 4 ranks, and two all-reduces of 1000 and 3000 bytes.

    The schema of the payloads is that of real exports (numbers, names, types and offsets).
    """
    entries = [
        (1, 16777218, 0, 18, "NCCL communicator ID", None), (1, 16777218, 1, 5, "No. of ranks", 8),
        (1, 16777223, 0, 18, "NCCL communicator ID", None), (1, 16777223, 1, 22, "Message size [bytes]", 8),
    ]  # fmt: skip

    def payload(schema: int, content: bytes) -> bytes:
        return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(content), 32 + len(content)) + content

    with closing(sqlite3.connect(path)) as db:
        columns = "domainId INT, schemaId INT, idx INT, type INT, name TEXT, offset INT"
        put(db, "NVTX_PAYLOAD_SCHEMA_ENTRIES", columns, entries)
        for column in ("domainId INT", "binaryData BLOB"):
            db.execute(f"ALTER TABLE NVTX_EVENTS ADD COLUMN {column}")
        calls = [
            ("ncclCommInitRank", payload(16777218, struct.pack("<Qiiii", 77, 4, 1, 0, 0))),
            ("ncclAllReduce", payload(16777223, struct.pack("<QQQ", 77, 1000, 0))),
            ("ncclAllReduce", payload(16777223, struct.pack("<QQQ", 77, 3000, 0))),
        ]
        row = "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, binaryData) VALUES "
        for name, content in calls:
            db.execute(f"{row} (40, 50, 59, ?, ?, 1, ?)", (name, global_id(PID, 1), content))
        db.execute("UPDATE StringIds SET value = 'ncclDevKernel_AllReduce_Sum_f32_RING_LL' WHERE value = 'gemm'")
        db.commit()


def ranks_in_collectives(path: Path, joins: dict[int, list[tuple[int, int]]], host: str | None = None) -> Path:
    """Write processes that only take part in all-reduces: start and end of each, by process id, in nanoseconds."""
    with closing(sqlite3.connect(path)) as db:
        put(db, "StringIds", "id INT, value TEXT", [(1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")])
        kernels = [(*each, pid - PID, global_id(pid), 1, 1) for pid, times in joins.items() for each in times]
        put(db, "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, kernels)
        if host is not None:
            put(db, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs INT", [(0,)])
            put(db, "TARGET_INFO_SYSTEM_ENV", "name TEXT, value TEXT", [("Hostname", host)])
        db.commit()
    return path


def kineto_trace(path: Path, rank: int | None = 1) -> Path:
    """Write a PyTorch profiler trace of the CUDA process of `nsys_export`, in microseconds."""

    def event(category: str, name: str, start: float, end: float, **arguments: Any) -> dict[str, Any]:
        on_device = category in ("kernel", "gpu_memcpy", "gpu_memset")
        times = {"ts": start * 1000, "dur": (end - start) * 1000}
        where = {"pid": 2 if on_device else PID, "tid": 7}
        return {"ph": "X", "cat": category, "name": name, **where, **times, "args": arguments}

    events = [
        *(event("user_annotation", name, start, end) for start, end, name in RANGES),
        event("cuda_runtime", "cudaLaunchKernel_v7000", 0, 1, correlation=0),
        event("cuda_runtime", "cudaLaunchKernel_v7000", 2, 4, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel_v7000", 5, 11, correlation=2),
        event("kernel", "gemm", 1, 4, device=2, correlation=0),
        event("kernel", "gemm", 6, 11, device=2, correlation=1),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 1, device=2, bytes=100),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 3, 5, device=2, bytes=300),
        event("gpu_memset", "Memset (Device)", 0, 0.5, device=2, bytes=64),
        event("gpu_user_annotation", "step", 0, 10),
        {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 0},
    ]
    document: dict[str, Any] = {"traceEvents": events}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 2}
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        json.dump(document, file)
    return path
