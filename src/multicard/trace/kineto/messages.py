"""Messages of collectives, which PyTorch notes on the kernels that carry them (torch/csrc/profiler/util.cpp)."""

import numpy as np

from multicard.trace.kernel_classes import collective_call
from multicard.trace.kineto.document import Arguments, Event
from multicard.trace.kineto.tables import Process, Table
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
_MOST_BYTES = 1 << 60

# Of these a rank's own part is what it receives; of the others what it sends.
_COUNTED_BY_WHAT_IS_RECEIVED = ("reduce_scatter", "recv")


def messages(kernels: list[Event], api: list[Event], process: Process) -> Table:
    """Return one message for each kernel of one process that carries the name of a collective.

    Its bytes are counted as NCCL does. It has the start of the call that sent it, or that of its kernel where the call
    was not recorded. Its communicator is the name of the process group: PyTorch's "Comms Id" would not do, since it
    differs from call to call.
    """
    named = [event for event in kernels if event.args.collective]
    collectives = [collective_call(str(event.args.collective)) for event in named]
    calls = _first_calls(api) if named else {}
    keys: dict[tuple[object, ...], int] = {}
    code = []
    rows = []
    for event, collective in zip(named, collectives, strict=True):
        if collective is None:
            continue
        arguments = event.args
        correlation = whole(arguments.correlation)
        kernel_start = nanoseconds(event.ts)
        call = calls.get(correlation)
        thread = whole(call.tid) if call else None
        start = nanoseconds(call.ts) if call else kernel_start
        end = start + nanoseconds(call.dur) if call else MISSING
        sequence = whole(arguments.sequence)
        communicator = None if arguments.group is None else str(arguments.group)
        key = (process.number, collective, whole(arguments.ranks), communicator, thread)
        code.append(keys.setdefault(key, len(keys)))
        rows.append((
            MISSING if correlation is None else correlation,
            kernel_start,
            start,
            end,
            _bytes(arguments, collective),
            MISSING if sequence is None else sequence,
        ))  # fmt: skip
    columns = np.array(rows, np.int64).reshape(-1, len(KINDS["messages"].numbers)).T
    numbers = dict(zip(KINDS["messages"].numbers, columns, strict=True))
    known = numbers["end"] != MISSING
    numbers["duration"] = np.where(known, numbers["end"] - numbers["start"], MISSING)
    return Table(list(keys), np.array(code, np.int32), numbers)


def _first_calls(api: list[Event]) -> dict[int | None, Event]:
    """Return the first call of each correlation: a call of the runtime comes before that of the driver inside."""
    found: dict[int | None, Event] = {}
    for call in sorted(api, key=lambda call: call.ts):
        found.setdefault(whole(call.args.correlation), call)
    found.pop(None, None)
    return found


def _bytes(arguments: Arguments, collective: str) -> int:
    """Return the size of a message; `MISSING` where it was not recorded."""
    sent, received = whole(arguments.sent), whole(arguments.received)
    elements = received if collective in _COUNTED_BY_WHAT_IS_RECEIVED else sent
    size = _ELEMENT_BYTES.get(str(arguments.dtype).lower().removeprefix("torch.").removeprefix("c10::"))
    if elements is None or size is None:
        return MISSING
    total = elements * size
    return total if 0 <= total < _MOST_BYTES else MISSING
