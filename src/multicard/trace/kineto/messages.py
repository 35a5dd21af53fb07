"""Messages of collectives, which PyTorch notes on the kernels that carry them (torch/csrc/profiler/util.cpp)."""

from typing import NamedTuple

import numpy as np

from multicard.trace.kernel_classes import collective_of_call
from multicard.trace.kineto.document import Arguments
from multicard.trace.kineto.events import TimedEvent
from multicard.trace.kineto.tables import EventTable, Key, Process
from multicard.trace.kineto.values import nanoseconds, whole
from multicard.trace.model import KINDS, MISSING

# Bytes of an element by PyTorch's name of its type (c10/core/ScalarType.h) in small letters, and by NumPy's.
_ELEMENT_BYTES = {
    "double": 8, "long": 8, "uint64": 8, "float64": 8, "int64": 8, "complexfloat": 8,
    "float": 4, "int": 4, "uint32": 4, "float32": 4, "int32": 4, "complexhalf": 4,
    "half": 2, "bfloat16": 2, "short": 2, "uint16": 2, "float16": 2, "int16": 2,
    "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "complexdouble": 16,
}  # fmt: skip
# No message is as large as an exbibyte. A size of that many bytes or more comes from a damaged record.
_MOST_BYTES = 1 << 60

# The size of a message, as NCCL counts it, is what a rank sends; for these collectives it is what a rank receives.
_SIZED_BY_RECEIVED = ("reduce_scatter", "recv")


class _Numbers(NamedTuple):
    """The numbers of a message, in the order of its kind's numbers in `KINDS`; `MISSING` (-1) where not recorded.

    `kernel_start`, `start` and `end` are in nanoseconds, `bytes` is the size by `_bytes`.
    """

    correlation: int
    kernel_start: int
    start: int
    end: int
    bytes: int
    sequence: int


def messages(kernels: list[TimedEvent], api: list[TimedEvent], process: Process) -> EventTable:
    """Return one message for each kernel of one process that carries the name of a known collective.

    Its size is in bytes, counted as NCCL does (`_bytes`). Its times are in nanoseconds. `MISSING` (-1) stands for a
    size, a correlation or a sequence number that was not recorded.

    Its start and end are those of the call that launched the kernel. If that call was not recorded, its start is that
    of the kernel, and its end and duration are `MISSING`.

    Its communicator is the name of the process group, because PyTorch's "Comms Id" differs from call to call.
    """
    named = [event for event in kernels if event.args.collective]
    calls = _first_calls(api) if named else {}
    # A table stores each group once, and for each message the position of its group. A new group gets the position
    # after the last one.
    position_of_group: dict[Key, int] = {}
    group_positions = []
    rows = []
    for event in named:
        collective = collective_of_call(str(event.args.collective))
        if collective is None:
            continue
        correlation = whole(event.args.correlation)
        call = None if correlation is None else calls.get(correlation)
        group = _group(event, collective, call, process)
        group_positions.append(position_of_group.setdefault(group, len(position_of_group)))
        rows.append(_numbers(event, collective, correlation, call))
    columns = np.array(rows, np.int64).reshape(-1, len(_Numbers._fields)).T
    numbers = dict(zip(KINDS["messages"].numbers, columns, strict=True))
    has_end = numbers["end"] != MISSING
    numbers["duration"] = np.where(has_end, numbers["end"] - numbers["start"], MISSING)
    return EventTable(groups=list(position_of_group), codes=np.array(group_positions, np.int32), numbers=numbers)


def _group(event: TimedEvent, collective: str, call: TimedEvent | None, process: Process) -> Key:
    """Return the columns of a message's group; the thread is None if the call was not recorded."""
    communicator = None if event.args.group is None else str(event.args.group)
    thread = whole(call.tid) if call else None
    return process.number, collective, whole(event.args.ranks), communicator, thread


def _numbers(event: TimedEvent, collective: str, correlation: int | None, call: TimedEvent | None) -> _Numbers:
    kernel_start = nanoseconds(event.ts)
    start = nanoseconds(call.ts) if call else kernel_start
    sequence = whole(event.args.sequence)
    return _Numbers(
        correlation=MISSING if correlation is None else correlation,
        kernel_start=kernel_start,
        start=start,
        end=start + nanoseconds(call.dur) if call else MISSING,
        bytes=_bytes(event.args, collective),
        sequence=MISSING if sequence is None else sequence,
    )


def _first_calls(api: list[TimedEvent]) -> dict[int, TimedEvent]:
    """Return for each correlation the call that began first.

    A call of the runtime begins before the call of the driver inside it, which has the same correlation.
    """
    calls: dict[int, TimedEvent] = {}
    for call in sorted(api, key=lambda call: call.ts):
        correlation = whole(call.args.correlation)
        if correlation is not None:
            calls.setdefault(correlation, call)
    return calls


def _bytes(arguments: Arguments, collective: str) -> int:
    """Return the size of a message in bytes: the number of its elements times the bytes of one element.

    `MISSING` if the number of elements or their type was not recorded, if the type is not known, or if the size is not
    possible. Here 4 elements are sent and 8 received, of 4 bytes each:

    >>> gathered = Arguments(dtype="Float", sent=4, received=8)
    >>> _bytes(gathered, "all_gather"), _bytes(gathered, "reduce_scatter"), _bytes(Arguments(), "all_gather")
    (16, 32, -1)
    """
    elements = whole(arguments.received if collective in _SIZED_BY_RECEIVED else arguments.sent)
    type_name = str(arguments.dtype).lower().removeprefix("torch.").removeprefix("c10::")
    element_bytes = _ELEMENT_BYTES.get(type_name)
    if elements is None or element_bytes is None:
        return MISSING
    total = elements * element_bytes
    return total if 0 <= total < _MOST_BYTES else MISSING
