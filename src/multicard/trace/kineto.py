"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped."""

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from multicard.launch.nsys import TraceError
from multicard.trace.model import EVENTS, Trace, rank_marks

API_CATEGORIES = {"cuda_runtime": "runtime", "cuda_driver": "driver"}
# What reading a file that is no trace, or a damaged one, can raise.
MALFORMED = (
    OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
    pa.ArrowException,
)  # fmt: skip

COPY_NAMES = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "PtoP": "peer_to_peer",
}


def read(path: Path) -> Trace:
    """Read one trace.

    Raises
    ------
    TraceError
        If the file is not a trace.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            return _trace(json.load(file))
    except MALFORMED as error:
        said = str(error)[:200]
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: {type(error).__name__}: {said}") from error


def _trace(document: dict[str, Any]) -> Trace:
    recorded = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in EVENTS}
    # Device events carry the device in the place of the process; the host events tell the process.
    host = [e["pid"] for e in recorded if e.get("cat") in ("user_annotation", "cpu_op", *API_CATEGORIES)]
    process = next((pid for pid in host if isinstance(pid, int)), -1)
    for event in recorded:
        category, name = event.get("cat"), event.get("name", "")
        start = _nanoseconds(event["ts"])
        times = {"start_ns": start, "end_ns": start + _nanoseconds(event.get("dur", 0))}
        arguments = event.get("args", {})
        if category == "user_annotation":
            rows["ranges"].append({"process": process, "thread": _number(event["tid"]), "name": name} | times)
        elif category in API_CATEGORIES:
            call = {"process": process, "thread": _number(event["tid"]), "correlation": arguments.get("correlation")}
            rows["api"].append(call | {"api": API_CATEGORIES[category], "name": name} | times)
        elif category == "kernel":
            where = {"process": process, "device": _number(arguments.get("device"))}
            rows["kernels"].append(where | {"correlation": arguments.get("correlation"), "name": name} | times)
        elif category in ("gpu_memcpy", "gpu_memset"):
            operation = "memset" if category == "gpu_memset" else _copy(name)
            what = {"operation": operation, "host_memory": _host_memory(name), "bytes": arguments.get("bytes")}
            where = {"process": process, "device": _number(arguments.get("device"))}
            rows["memory"].append(where | what | times)

    trace = Trace({})
    for kind, found in rows.items():
        if found:
            trace.events[kind] = pa.Table.from_pylist(found, EVENTS[kind])
        else:
            trace.absent[kind] = "the capture holds no such events"
    rank = document.get("distributedInfo", {}).get("rank")
    if not isinstance(rank, int):
        names = [row["name"] for row in rows["ranges"]]
        trace.ranks = rank_marks(names, [process] * len(names))
    else:
        trace.ranks = {process: rank}
    return trace


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _copy(name: str) -> str:
    """Direction of a copy from a name such as `Memcpy HtoD (Pageable -> Device)`."""
    return next((operation for key, operation in COPY_NAMES.items() if key in name), "other")


def _host_memory(name: str) -> str | None:
    """Kind of host memory of a copy, told from the same name."""
    return next((kind.lower() for kind in ("Pageable", "Pinned") if kind in name), None)
