"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped."""

import gc
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import MOST_NS, refuse_absurd
from multicard.trace.kernel_classes import collective_call
from multicard.trace.model import (
    KINDS,
    NOT_RECORDED,
    Batch,
    EventSource,
    Groups,
    Trace,
    picked,
    rank_marks,
    shared_name,
)

SMALL_BYTES, MOST_TIMES = 64 << 20, 40  # what a file may unpack to at least, and how many times its size
API_CATEGORIES = {"cuda_runtime": "runtime", "cuda_driver": "driver", "runtime": "runtime"}
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
# What reading a file that is no trace, or a damaged one, can raise.
MALFORMED = (
    OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip

COPY_NAMES = {
    "HtoD": "host_to_device",
    "DtoH": "device_to_host",
    "DtoD": "device_to_device",
    "PtoP": "peer_to_peer",
}

ELEMENT_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip


def read(path: Path) -> Trace:
    """Read one trace.

    Raises
    ------
    TraceError
        If the file is not a trace.
    """
    try:
        with _no_collection():
            document = json.loads(_content(path))
            if not _is_trace(document):
                raise TraceError(f"{path}: no trace of PyTorch's profiler: its JSON has no list traceEvents of events")
            found = _KinetoEvents(document)
    except MALFORMED as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        if isinstance(error, OverflowError):
            said = f"found a number that is too large, expected times of at most {MOST_NS / 1e9:.3g} s"
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: {said}") from error
    absent = {kind: NOT_RECORDED[kind] for kind in KINDS if not found.rows[kind]}
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return Trace(name, lambda kind, _, groups: found.source(kind, groups), absent, found.ranks, gpus=found.gpus)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    most = max(SMALL_BYTES, MOST_TIMES * path.stat().st_size)
    with gzip.open(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TraceError(f"{path}: unpacks to more than {MOST_TIMES} times its size, expected about 15")
    return content


def _is_trace(document: Any) -> bool:
    events = document.get("traceEvents") if isinstance(document, dict) else None
    return isinstance(events, list) and all(isinstance(event, dict) for event in events)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hold the cyclic garbage collector, which would walk through millions of new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _KinetoEvents:
    """Events of a document by kind: the group of each, and its numbers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.rows: dict[str, list[tuple[tuple[Any, ...], tuple[int, ...]]]] = {kind: [] for kind in KINDS}
        events = document["traceEvents"]
        self._recorded = recorded = [event for event in events if event.get("ph") == "X"]
        # Device events carry the device in the place of the process; the host events tell the process.
        host = (e["pid"] for e in recorded if e.get("cat") in ("user_annotation", "cpu_op", *API_CATEGORIES))
        self.process = next((pid for pid in host if isinstance(pid, int)), -1)
        for event in recorded:
            self._add(event)
        for event in events:
            if event.get("name") == "[memory]" and event.get("ph") == "i":
                self._add_memory_use(event)
        self._recorded.clear()
        names = [str(each["name"]) for each in document.get("deviceProperties") or () if "name" in each]
        self.gpus = tuple(dict.fromkeys(names))
        rank = document.get("distributedInfo", {}).get("rank")
        if isinstance(rank, int):
            self.ranks = {self.process: rank}
        else:
            self.ranks = rank_marks([(self.process, group[2]) for group, _ in self.rows["ranges"]])
        for kind, rows in self.rows.items():  # integers that do not fit are found here, where the file is named
            columns = np.array([numbers for _, numbers in rows], np.int64).reshape(-1, len(KINDS[kind].numbers))
            refuse_absurd(dict(zip(KINDS[kind].numbers, columns.T, strict=True)))

    def _add(self, event: dict[str, Any]) -> None:
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        start = _nanoseconds(event["ts"])
        times = (start, start + _nanoseconds(event.get("dur", 0)))
        arguments, thread = event.get("args", {}), _number(event.get("tid"))
        if category == "user_annotation":
            self.rows["ranges"].append(((self.process, None, shared_name(name), thread), times))
            return
        correlation = _number(arguments.get("correlation"))
        numbers = (-1 if correlation is None else correlation, *times)
        if category in API_CATEGORIES:
            self.rows["api"].append(((self.process, API_CATEGORIES[category], name, thread), numbers))
        elif category == "kernel":
            device = _number(arguments.get("device"))
            shapes = (_shape(arguments.get("grid")), _shape(arguments.get("block")))
            group = (self.process, device, name, *shapes, _number(arguments.get("stream")))
            self.rows["kernels"].append((group, numbers))
            self._add_message(arguments, start)
        elif category in COPY_CATEGORIES:
            operation = "memset" if category.endswith("memset") else _copy(name)
            size = _number(arguments.get("bytes"))
            group = (self.process, _number(arguments.get("device")), operation, _host_memory(name))
            group += (_number(arguments.get("stream")),)
            self.rows["memory"].append((group, (numbers[0], -1 if size is None else size, *times)))

    def _add_message(self, arguments: dict[str, Any], start: int) -> None:
        """Keep the message of a communication kernel, counted as NCCL does: a rank's own part where parts differ.

        `start` is that of the kernel, which stands in where the call was not recorded.
        """
        kind = collective_call(str(arguments.get("Collective name", "")))
        size = ELEMENT_BYTES.get(str(arguments.get("dtype")))
        sent, received = (_number(arguments.get(f"{way} msg nelems")) for way in ("In", "Out"))
        if kind is None or size is None or sent is None or received is None:
            return
        elements = received if kind in ("reduce_scatter", "recv") else sent
        ranks = _number(arguments.get("Group size"))
        called = self._calls.get(_number(arguments.get("correlation")), start)
        self.rows["messages"].append(((self.process, kind, ranks), (called, elements * size)))

    @cached_property
    def _calls(self) -> dict[int | None, int]:
        """Start of the first call with each correlation."""
        found: dict[int | None, int] = {}
        for event in self._recorded:
            correlation = _number(event.get("args", {}).get("correlation"))
            if correlation is not None and str(event.get("cat", "")).lower() in API_CATEGORIES:
                start = _nanoseconds(event["ts"])
                found[correlation] = min(start, found.get(correlation, start))
        return found

    def _add_memory_use(self, event: dict[str, Any]) -> None:
        arguments = event["args"]
        if arguments.get("Device Type") != 1:  # a CUDA device
            return
        for pool in ("Allocated", "Reserved"):
            size = _number(arguments.get(f"Total {pool}"))
            if size is not None:
                group = (self.process, _number(arguments.get("Device Id")), f"torch_{pool.lower()}")
                self.rows["memory_use"].append((group, (_nanoseconds(event["ts"]), size)))

    def source(self, kind: str, groups: tuple[str, ...]) -> EventSource:
        """Events of a kind as one part."""
        coded = Groups()
        keys = picked(kind, groups, [group for group, _ in self.rows[kind]])

        def read_all() -> Iterator[Batch]:
            numbers = np.array([numbers for _, numbers in self.rows[kind]], np.int64)
            numbers = numbers.reshape(-1, len(KINDS[kind].numbers))
            named = dict(zip(KINDS[kind].numbers, numbers.T.copy(), strict=True))
            if "end" in named:
                named["duration"] = named["end"] - named["start"]
            yield Batch(coded.codes(keys), named)

        return EventSource(
            [read_all],
            lambda wanted: [tuple(dict(zip(groups, key, strict=True))[name] for name in wanted) for key in coded.keys],
        )


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _shape(value: Any) -> str | None:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(size, int) for size in value):
        return "×".join(map(str, value))
    return None


def _copy(name: str) -> str:
    """Direction of a copy from a name such as `Memcpy HtoD (Pageable -> Device)`."""
    return next((operation for key, operation in COPY_NAMES.items() if key in name), "other")


def _host_memory(name: str) -> str | None:
    """Kind of host memory of a copy, told from the same name."""
    return next((kind.lower() for kind in ("Pageable", "Pinned") if kind in name), None)
