"""Traces as readers return them: the events of one capture, whatever profiler recorded them, as NumPy arrays.

A capture holds millions of events under a few hundred descriptions (process, function name, …). So an event is its
numbers and the code of its description, its *group*, which is written down once.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[Any]

# Extents of steps: when a device ran them, or when the host did.
DEVICE, HOST = "device", "host"
MISSING = -1  # a number that was not recorded


class Kind(NamedTuple):
    """A kind of events: the columns that describe a group of them, and the numbers of each event."""

    groups: tuple[str, ...]
    numbers: tuple[str, ...]


# Times (`start`, `end`) are nanoseconds on the trace's own clock; `process` is the process id; `thread` and `stream`
# are None where they were not recorded. Kinds with an `end` also have a `duration`, which can be read alone.
KINDS: dict[str, Kind] = {
    # Named ranges that the program pushed and popped, and closed. Their names are those of `shared_name`.
    "ranges": Kind(("process", "domain", "name", "thread"), ("start", "end")),
    # Calls of the runtime or driver of CUDA, HIP or SYCL on the host; `api` is "runtime", "driver", "backtrace" for a
    # row that repeats a call of its own row, or "other". What a call starts on a device carries its `correlation`, a
    # number that is unique within the process only, negative where there is none.
    "api": Kind(("process", "api", "name", "thread"), ("correlation", "start", "end")),
    # Calls of the operating system's runtime and of MPI on the host.
    "host_calls": Kind(("process", "name", "thread"), ("start", "end")),
    # Kernels on a device.
    "kernels": Kind(("process", "device", "name", "stream"), ("correlation", "start", "end")),
    # Copies and fills on a device; `operation` is one of OPERATIONS. For copies between the device and the host,
    # `host_memory` is "pageable" or "pinned" if that was recorded, else None.
    "memory": Kind(
        ("process", "device", "operation", "host_memory", "stream"), ("correlation", "bytes", "start", "end")
    ),
    # Replays of whole CUDA graphs, whose kernels and copies were not recorded one by one (`nsys profile
    # --cuda-graph-trace=graph`, the default of nsys). What ran inside a replay is unknown.
    "graphs": Kind(("process", "device", "stream"), ("correlation", "start", "end")),
    # Calls of collectives, each with the `bytes` of its message as the communication library counts them. `ranks` is
    # the number of ranks that take part, `communicator` names the process group or communicator, both None where not
    # recorded; `thread` made the call. `start` and `end` are those of the call on the host. A profiler that notes the
    # message on the kernel itself gives that kernel's `correlation` and `kernel_start`; `sequence` counts the
    # collectives of a communicator. These numbers are `MISSING` where they were not recorded.
    "messages": Kind(
        ("process", "collective", "ranks", "communicator", "thread"),
        ("correlation", "kernel_start", "start", "end", "bytes", "sequence"),
    ),
}

OPERATIONS = (
    "host_to_device", "device_to_host", "device_to_device", "peer_to_peer", "host_to_host",
    "unified_host_to_device", "unified_device_to_host", "unified_device_to_device", "memset", "other",
)  # fmt: skip

_RANK = re.compile(r"(?:rank:|MPI Rank )([0-9]{1,9})")

# What PyTorch's emit_nvtx and its profiler append to the name of an operator.
_SINGLE_CALL = re.compile(r", (?:seq|op_id|sizes|input_op_ids|trace_id) ?= ?.*", re.DOTALL)
# A step that carries its number, such as PyTorch's `ProfilerStep#7`.
_STEP = re.compile(r"(?:profiler)?(?:step|iteration|iter)[ _#:-]*\d*", re.IGNORECASE)

# The reason for which each kind may be absent. Profilers leave out both what did not happen and what they were not
# asked to record, so the two cannot be distinguished.
NOT_RECORDED = {
    "ranges": "the capture holds no ranges",
    "api": "the capture holds no calls of the CUDA, HIP or SYCL API",
    "kernels": "the capture holds no kernels",
    "memory": "the capture holds no memory operations of a device",
    "host_calls": "the capture holds no calls of the operating system or of MPI",
    "graphs": "the capture holds no replays of CUDA graphs",
    "messages": "the capture holds no sizes of messages",
}


def reasons_for_absent(recorded: Collection[str]) -> dict[str, str]:
    """Return the reason for each kind that is not among the recorded ones."""
    return {name: NOT_RECORDED[name] for name in KINDS if name not in recorded}


class Batch(NamedTuple):
    """Some events of one kind: the code of each event's group, and numbers by name, all arrays of one length."""

    group: Integers
    numbers: dict[str, Integers]

    def where(self, keep: npt.NDArray[np.bool_]) -> "Batch":
        """Return the events of a mask."""
        numbers = {name: values[keep] for name, values in self.numbers.items()}
        return Batch(self.group[keep], numbers)


class Groups:
    """The groups of one kind in one trace, with codes that count up from 0. Safe to use from several threads."""

    def __init__(self) -> None:
        self._codes: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()

    def codes(self, keys: Sequence[tuple[Any, ...]]) -> Integers:
        """Return the code of each key, a new one for a new key."""
        with self._lock:
            codes = [self._codes.setdefault(key, len(self._codes)) for key in keys]
        return np.array(codes, np.int32)

    @property
    def keys(self) -> list[tuple[Any, ...]]:
        """Keys in the order of their codes."""
        with self._lock:
            return list(self._codes)


BatchReader = Callable[[], Iterator[Batch]]


@dataclass
class EventSource:
    """Events of one kind in one trace.

    `parts` together yield all of them, and may be read at the same time by several threads. `described` returns the
    values of the requested group columns, by code, for the groups seen so far.
    """

    parts: list[BatchReader]
    described: Callable[[], list[tuple[Any, ...]]]


class Steps(NamedTuple):
    """Starts and ends of the steps of a process in order of time, in nanoseconds, disjoint.

    `extent`: `DEVICE` or `HOST`, whose time they are. `threads`: the thread of each step, None where it is unknown.
    """

    starts: Integers
    ends: Integers
    extent: str = HOST
    threads: Sequence[int | None] = ()

    @property
    def window(self) -> tuple[int, int]:
        """Start of the first step and end of the last."""
        return int(self.starts[0]), int(self.ends[-1])


class Diagnostic(NamedTuple):
    """A line that a profiler recorded about what is wrong with its capture.

    `means_loss`: True if events of a kind that was recorded are missing.
    """

    text: str
    means_loss: bool


@dataclass
class Trace:
    """One file of a capture."""

    # Name in the column `report` of the tables.
    name: str
    # Returns the source of a kind in `KINDS` that was recorded; called again, it reads again. The second argument names
    # the numbers that are needed, the third the group columns: others may be missing from the batches, or empty.
    open: Callable[[str, tuple[str, ...], tuple[str, ...]], EventSource]
    # The reason for each kind that was not recorded.
    absent: dict[str, str]
    # Rank by process id, as far as the trace itself states it.
    ranks: dict[int, int] = field(default_factory=dict)
    # Names of the GPU models in the trace, as far as it states them.
    gpus: tuple[str, ...] = ()
    # Number of GPUs of the traced machine that can run CUDA or HIP; None if the trace does not state it.
    gpu_count: int | None = None
    # Identity of the physical GPU, such as its UUID, by process id and number of the device in that process. Two
    # processes that share one GPU have the same identity here.
    gpu_identities: dict[tuple[int, int], str] = field(default_factory=dict)
    # Identity of the clock of all times. Times of two traces can be compared where it is the same and not None.
    clock: str | None = None
    # What the profiler recorded about events that it lost or could not record.
    diagnostics: tuple[Diagnostic, ...] = ()
    # Lines about what reading had to repair or leave out.
    notices: tuple[str, ...] = ()
    # Returns a line for each error that launching calls returned. It may take as long as reading all calls.
    failed_launches: Callable[[], list[str]] = list
    # Steps by process that `find_steps` found; None if ranges of the trace are to mark them.
    steps: dict[int, Steps] | None = None

    def has(self, kind: str) -> bool:
        """Return True if events of a kind were recorded; for "steps", if there are steps or ranges to mark them."""
        if kind != "steps":
            return kind not in self.absent
        if self.steps is not None:
            return bool(self.steps)
        return "ranges" not in self.absent


def picked(kind: str, wanted: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the wanted group columns of keys, each of which has all group columns of a kind in their order."""
    positions = [KINDS[kind].groups.index(name) for name in wanted]
    return [tuple(key[position] for position in positions) for key in keys]


def why_absent(traces: Sequence[Trace], kinds: Sequence[str]) -> str:
    """Return the reason for the first of these kinds that none of the traces recorded."""
    for name in kinds:
        if traces and not any(trace.has(name) for trace in traces):
            # Ranges are to mark the steps, so their absence is the reason if there are none.
            recorded_kind = "ranges" if name == "steps" else name
            return traces[0].absent.get(recorded_kind, "no steps were found")
    return "not recorded"


def rank_marks(names: Sequence[tuple[int, str]]) -> dict[int, int]:
    """Return ranks by process id, from pairs of a process and one of its names.

    Names are those of marks, of which `rank:N` states a rank, and of threads, of which `MPI Rank N` does.
    """
    ranks: dict[int, int] = {}
    for process, name in names:
        match = _RANK.fullmatch(name)
        if match is not None:
            ranks[process] = int(match[1])
    return ranks


def shared_name(name: str) -> str:
    """Return the name of a range without what distinguishes single calls; every sort of numbered step is `step`.

    >>> shared_name("aten::copy_, op_id = 991065"), shared_name("ProfilerStep#7"), shared_name("layer 7")
    ('aten::copy_', 'step', 'layer 7')
    """
    name = _SINGLE_CALL.sub("", name)
    return "step" if _STEP.fullmatch(name) else name
