"""Traces as readers return them: the events of one capture, whatever profiler recorded them, as NumPy arrays.

A capture holds millions of events, but only a few hundred distinct descriptions of them (process, function name, …).
Each description is stored once, as a *group* with a code. An event consists of its numbers and the code of its group.
"""

import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[Any]

# Extents of steps: their starts and ends are the times at which a device ran them, or the host.
DEVICE, HOST = "device", "host"
MISSING = -1  # a number that was not recorded


class Kind(NamedTuple):
    """A kind of events: the columns that describe a group of them, and the numbers of each event."""

    groups: tuple[str, ...]
    numbers: tuple[str, ...]


# Times (`start`, `end`) are nanoseconds on the trace's own clock. `process` is the process id. `thread` and `stream`
# are None where they were not recorded. Kinds with an `end` also have a `duration`, which can be read without both
# times.
KINDS: dict[str, Kind] = {
    # Named ranges that the program opened and closed. A range that was never closed is left out. `name` is the name
    # that `shared_name` returns.
    "ranges": Kind(("process", "domain", "name", "thread"), ("start", "end")),
    # Calls of the runtime or driver of CUDA, HIP or SYCL on the host. `api` is "runtime", "driver" or "other", or
    # "backtrace" for a row that repeats a call which has a row of its own. The device events that a call starts have
    # the same `correlation` as the call. Different processes may use the same correlation. It is negative if there is
    # none.
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
    # Calls of collectives. `bytes` is the size of the call's message as the communication library counts it. `ranks` is
    # the number of ranks that take part, and `communicator` names the process group or communicator; both are None
    # where they were not recorded. `thread` made the call. `start` and `end` are those of the call on the host.
    # `correlation` and `kernel_start` are those of the kernel that carries the message, if the profiler recorded the
    # message together with that kernel. `sequence` counts the collectives of a communicator. Numbers that were not
    # recorded are `MISSING`.
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

# PyTorch's emit_nvtx and its profiler append such text to the name of an operator.
_SINGLE_CALL = re.compile(r", (?:seq|op_id|sizes|input_op_ids|trace_id) ?= ?.*", re.DOTALL)
# The name of a step with or without a number, such as PyTorch's `ProfilerStep#7`.
_STEP = re.compile(r"(?:profiler)?(?:step|iteration|iter)[ _#:-]*\d*", re.IGNORECASE)

# The reason to show for each kind that is absent from a trace. A profiler leaves out events that did not happen as well
# as events that it was not asked to record, so the reason cannot say which of the two it is.
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
        """Return the events for which `keep` is True."""
        numbers = {name: values[keep] for name, values in self.numbers.items()}
        return Batch(self.group[keep], numbers)


class Groups:
    """The groups of one kind in one trace, with codes that count up from 0. Safe to use from several threads."""

    def __init__(self) -> None:
        self._codes: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()

    def codes(self, keys: Sequence[tuple[Any, ...]]) -> Integers:
        """Return the code of each key; a key that has no code yet gets the next one."""
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

    Each of `parts` yields some of the events, and all of them together yield every event once. Several threads may read
    different parts at the same time. `described` returns the values of the requested group columns, by code, for the
    groups whose events were read before it is called.
    """

    parts: list[BatchReader]
    described: Callable[[], list[tuple[Any, ...]]]


class Steps(NamedTuple):
    """Starts and ends of the steps of a process, in nanoseconds and in order of time. The steps are disjoint.

    `extent`: `HOST` if the host ran the steps at these times, `DEVICE` if a device did. `threads`: the thread that
    marked each step, None where it is unknown; empty if nobody asked for threads.
    """

    starts: Integers
    ends: Integers
    extent: str = HOST
    threads: Sequence[int | None] = ()

    @property
    def window(self) -> tuple[int, int]:
        """Start of the first step and end of the last one; there must be a step."""
        return int(self.starts[0]), int(self.ends[-1])


class Diagnostic(NamedTuple):
    """A line that a profiler recorded about a problem with its capture.

    `means_loss`: True if the line means that events are missing although events of that kind were recorded.
    """

    text: str
    means_loss: bool


@dataclass
class Trace:
    """One file of a capture."""

    # Name in the column `report` of the tables.
    name: str
    # Opens the events of a kind in `KINDS` that was recorded; each call reads the file again. The second argument names
    # the numbers that are needed, and the third one the group columns. Other numbers may be missing from the batches,
    # and other columns are not described.
    open: Callable[[str, tuple[str, ...], tuple[str, ...]], EventSource]
    # The reason for each kind that was not recorded.
    absent: dict[str, str]
    # Rank by process id. The reader enters the ranks that the trace itself states; callers may enter others that they
    # know.
    ranks: dict[int, int] = field(default_factory=dict)
    # Names of the GPU models; empty if the trace does not state them.
    gpus: tuple[str, ...] = ()
    # Number of GPUs of the traced machine that can run CUDA or HIP; None if the trace does not state it.
    gpu_count: int | None = None
    # Identity of the physical GPU, such as its UUID, by process id and number of the device in that process. Two
    # processes that share one GPU have the same identity here.
    gpu_identities: dict[tuple[int, int], str] = field(default_factory=dict)
    # Identity of the clock of all times in the trace. Times of two traces can be compared if both have the same clock
    # and it is not None.
    clock: str | None = None
    # What the profiler recorded about events that it lost or could not record.
    diagnostics: tuple[Diagnostic, ...] = ()
    # Lines about what the reader repaired or left out.
    notices: tuple[str, ...] = ()
    # Returns a line for each kind of error that launching calls returned. It may take as long as reading all calls.
    failed_launches: Callable[[], list[str]] = list
    # Steps by process id, as `find_steps.with_steps` enters them; None if ranges named `step` mark the steps.
    steps: dict[int, Steps] | None = None

    def has(self, kind: str) -> bool:
        """Return True if events of a kind were recorded.

        The kind may also be "steps": these count as recorded if `steps` holds any, or, if `steps` is None, if ranges
        were recorded, since ranges may mark steps.
        """
        if kind != "steps":
            return kind not in self.absent
        if self.steps is not None:
            return bool(self.steps)
        return "ranges" not in self.absent


def picked(kind: str, wanted: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return only the wanted group columns of each key; a key has all group columns of its kind, in their order."""
    positions = [KINDS[kind].groups.index(name) for name in wanted]
    return [tuple(key[position] for position in positions) for key in keys]


def why_absent(traces: Sequence[Trace], kinds: Sequence[str]) -> str:
    """Return the reason why a table is absent: that of the first of these kinds that none of the traces recorded.

    Return "not recorded" if there are no traces, or some trace recorded each kind.
    """
    for name in kinds:
        if traces and not any(trace.has(name) for trace in traces):
            # Without ranges nothing marks steps, so the absence of ranges is the reason. With ranges there is no reason
            # in `absent`: `find_steps` found no steps.
            recorded_kind = "ranges" if name == "steps" else name
            return traces[0].absent.get(recorded_kind, "no steps were found")
    return "not recorded"


def rank_marks(names: Sequence[tuple[int, str]]) -> dict[int, int]:
    """Return ranks by process id, from pairs of a process id and the name of a mark or thread of that process.

    A mark named `rank:N` and a thread named `MPI Rank N` state the rank N. Other names state nothing. If a process
    states several ranks, the last one counts.

    >>> rank_marks([(4242, "rank:3"), (4243, "MPI Rank 1"), (4244, "main")])
    {4242: 3, 4243: 1}
    """
    ranks: dict[int, int] = {}
    for process, name in names:
        match = _RANK.fullmatch(name)
        if match is not None:
            ranks[process] = int(match[1])
    return ranks


def shared_name(name: str) -> str:
    """Return the name of a range without the text that distinguishes single calls.

    A name that consists of "step", "iteration" or "iter" becomes `step`, with or without a number behind it.

    >>> shared_name("aten::copy_, op_id = 991065"), shared_name("ProfilerStep#7"), shared_name("layer 7")
    ('aten::copy_', 'step', 'layer 7')
    """
    name = _SINGLE_CALL.sub("", name)
    return "step" if _STEP.fullmatch(name) else name
