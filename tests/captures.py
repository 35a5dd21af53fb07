"""Captures of a profiler, made from a few numbers.

Times are in milliseconds. Each kernel has its launching call, start, end and name:

    path = make_trace(tmp_path / "t.json", Process(steps=[(0, 10), (10, 20)], kernels=[(1, 2, 9, "gemm")]))

One small capture with every kind of event, whose sums are known, is written by `synthetic.nsys_export` and
`synthetic.kineto_trace`.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from synthetic import MS, PID, RUNTIME, global_id, put

# Work of this name is a copy of 64 bytes to the device instead of a kernel.
COPY = "Memcpy HtoD (Pinned -> Device)"
# The thread that marks the steps. It launches what no other thread is stated to launch.
MARKER = 1
STREAM = 7
CALL_MS = 0.1
COPY_BYTES = 64


# A kernel as tests write it down: a tuple of these four.
KernelTimes = tuple[float, float, float, str]
# A call of the CUDA API that launches none of the kernels: start and end in milliseconds, and the function.
CallTimes = tuple[float, float, str]


class Kernel(NamedTuple):
    """Work of a device: when its launching call begins, when it starts and ends there, and its name."""

    call_ms: float
    start_ms: float
    end_ms: float
    name: str


class Lane(NamedTuple):
    """A stream and the thread that launches what is on it, by number; None: not recorded."""

    stream: int | None
    thread: int | None


Lanes = Mapping[str, tuple[int | None, int | None]]


@dataclass(frozen=True)
class Process:
    """A process of a capture: start and end of its steps on the host in milliseconds, and its kernels, in any order.

    `others`: calls of the thread `MARKER` besides those that launch the kernels.
    """

    steps: Sequence[tuple[float, float]] = ()
    kernels: Sequence[KernelTimes] = ()
    others: Sequence[CallTimes] = ()


def make_trace(
    path: Path,
    *processes: Process,
    calls: bool = True,
    lanes: Lanes | None = None,
    devices: Mapping[str, int] | None = None,
) -> Path:
    """Write processes as PyTorch's profiler does (`.json`, one process) or nsys (`.sqlite`, several on one clock).

    Parameters
    ----------
    path
        The file. Its suffix says whose form it has.
    processes
        Their ids are PID, PID + 1 and so on; the work of PID + n is on the device n.
    calls
        Whether calls were recorded. Each launching call lasts 0.1 ms.
    lanes
        By names of kernels, the lane of each. Those not named are on stream 7, launched by the thread `MARKER`. Without
        `lanes` no streams were recorded.
    devices
        By names of kernels, the device of those that are not on the one of their process.
    """
    write = {".json": _write_kineto, ".sqlite": _write_nsys}[path.suffix]
    write(path, _Capture(processes, calls, lanes, devices or {}))
    return path


@dataclass(frozen=True)
class _Capture:
    """What a capture holds; see `make_trace`."""

    processes: Sequence[Process]
    has_calls: bool
    lanes: Lanes | None
    devices: Mapping[str, int]

    def lane(self, name: str) -> Lane:
        """Return the lane of the kernels of a name."""
        return Lane(*(self.lanes or {}).get(name, (STREAM, MARKER)))


def _write_kineto(path: Path, capture: _Capture) -> None:
    [process] = capture.processes
    has_lanes = capture.lanes is not None

    def event(category: str, name: str, start_ms: float, duration_ms: float, **others: Any) -> dict[str, Any]:
        times_us = {"ts": start_ms * 1e3, "dur": duration_ms * 1e3}
        return {"ph": "X", "cat": category, "name": name, **times_us, **others}

    thread_of_marks = {"tid": MARKER} if has_lanes else {}
    events = [
        event("user_annotation", "step", start, end - start, pid=PID, **thread_of_marks) for start, end in process.steps
    ]
    for correlation, work in enumerate(process.kernels):
        kernel = Kernel(*work)
        lane = capture.lane(kernel.name)
        link = {"correlation": correlation, "device": capture.devices.get(kernel.name, 0)}
        if capture.has_calls:
            thread = {"tid": lane.thread} if has_lanes else {}
            events.append(
                event("cuda_runtime", "cudaLaunchKernel", kernel.call_ms, CALL_MS, pid=PID, args=link, **thread)
            )
        category = "gpu_memcpy" if kernel.name == COPY else "kernel"
        arguments = link | ({"stream": lane.stream} if has_lanes else {})
        duration_ms = kernel.end_ms - kernel.start_ms
        events.append(event(category, kernel.name, kernel.start_ms, duration_ms, pid=0, args=arguments))
    if capture.has_calls:
        for correlation, (start_ms, end_ms, function) in enumerate(process.others, start=len(process.kernels)):
            link = {"correlation": correlation}
            duration_ms = end_ms - start_ms
            events.append(event("cuda_runtime", function, start_ms, duration_ms, pid=PID, args=link, **thread_of_marks))
    path.write_text(json.dumps({"traceEvents": events}))


def _write_nsys(path: Path, capture: _Capture) -> None:
    names = dict.fromkeys(work[3] for process in capture.processes for work in process.kernels)
    functions = dict.fromkeys(function for process in capture.processes for _, _, function in process.others)
    texts = ["cudaLaunchKernel", *names, *functions]
    id_of = {text: number for number, text in enumerate(texts, start=1)}
    marks: list[tuple[Any, ...]] = []
    kernels: list[tuple[Any, ...]] = []
    copies: list[tuple[Any, ...]] = []
    calls: list[tuple[Any, ...]] = []

    def nanoseconds(start_ms: float, end_ms: float) -> tuple[int, int]:
        return round(start_ms * MS), round(end_ms * MS)

    for number, process in enumerate(capture.processes):
        pid = PID + number
        marks += [(*nanoseconds(*step), 59, "step", global_id(pid, MARKER)) for step in process.steps]
        for correlation, work in enumerate(process.kernels):
            kernel = Kernel(*work)
            lane = capture.lane(kernel.name)
            stream = () if capture.lanes is None else (lane.stream,)
            device = capture.devices.get(kernel.name, number)
            row = (*nanoseconds(kernel.start_ms, kernel.end_ms), device, global_id(pid), correlation, *stream)
            if kernel.name == COPY:
                copies.append((*row, COPY_BYTES, 1))
            else:
                kernels.append((*row, id_of[kernel.name]))
            times = nanoseconds(kernel.call_ms, kernel.call_ms + CALL_MS)
            calls.append((*times, 0, global_id(pid, lane.thread or 0), correlation, id_of["cudaLaunchKernel"]))
        for correlation, (start_ms, end_ms, function) in enumerate(process.others, start=len(process.kernels)):
            times = nanoseconds(start_ms, end_ms)
            calls.append((*times, 0, global_id(pid, MARKER), correlation, id_of[function]))
    columns = "start INT, end INT, deviceId INT, globalPid INT, correlationId INT"
    if capture.lanes is not None:
        columns += ", streamId INT"
    with closing(sqlite3.connect(path)) as db:
        put(db, "StringIds", "id INTEGER PRIMARY KEY, value TEXT", enumerate(texts, start=1))
        put(db, "NVTX_EVENTS", "start INT, end INT, eventType INT, text TEXT, globalTid INT", marks)
        put(db, "CUPTI_ACTIVITY_KIND_KERNEL", f"{columns}, demangledName INT", kernels)
        if copies:
            put(db, "CUPTI_ACTIVITY_KIND_MEMCPY", f"{columns}, bytes INT, copyKind INT", copies)
        if capture.has_calls:
            put(db, "CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME, calls)
        db.commit()
