"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped."""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import MOST_NS, refuse_absurd
from multicard.trace.kernel_classes import collective_call
from multicard.trace.model import (
    KINDS,
    MISSING,
    NOT_RECORDED,
    Batch,
    EventSource,
    Groups,
    Integers,
    Trace,
    picked,
    rank_marks,
    shared_name,
)

NO_NUMBER = re.compile(rb"(?<=[\s:,\[])-?(?:NaN|Infinity)(?=\s*[,}\]])")
SMALL_BYTES, MOST_TIMES = 64 << 20, 40  # what a file may unpack to at least, and how many times its size
API_CATEGORIES = {"cuda_runtime": "runtime", "cuda_driver": "driver", "runtime": "runtime"}
HOST_CATEGORIES = {"user_annotation", "cpu_op", *API_CATEGORIES}
KIND_OF = {
    "user_annotation": "ranges",
    **dict.fromkeys(API_CATEGORIES, "api"),
    "kernel": "kernels",
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), "memory"),
}
# What reading a file that is no trace, or a damaged one, can raise.
MALFORMED = (
    OSError, EOFError, zlib.error, msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, OverflowError,
    RecursionError,
)  # fmt: skip

COPY_NAMES = {"HtoD": "host_to_device", "DtoH": "device_to_host", "DtoD": "device_to_device", "PtoP": "peer_to_peer"}

ELEMENT_BYTES = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event's `args`."""

    correlation: Any = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    dtype: Any = None
    collective: Any = msgspec.field(default="", name="Collective name")
    ranks: Any = msgspec.field(default=None, name="Group size")
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    communicator: Any = msgspec.field(default=None, name="Process Group Name")
    sequence: Any = msgspec.field(default=None, name="Seq")


_NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """What is used of an event."""

    ph: Any = None
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0
    args: Arguments = _NO_ARGUMENTS


class Document(msgspec.Struct):
    """What is used of a file."""

    traceEvents: list[Event]  # noqa: N815, the name in the file
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = {}  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815


class _Table(NamedTuple):
    """Events of a kind: what describes each group, the code of each event's group, and its numbers."""

    groups: list[tuple[Any, ...]]
    code: Integers
    numbers: dict[str, Integers]


def read(path: Path) -> Trace:
    """Read one trace.

    Raises `TraceError` if the file is not a trace.
    """
    try:
        document = _document(path)
        events: dict[str, list[Event]] = {kind: [] for kind in KINDS}
        process = None  # device events carry the device in its place
        for event in document.traceEvents:
            if event.ph == "X":
                kind = KIND_OF.get(event.cat) or KIND_OF.get(str(event.cat).lower())
                if kind is not None:
                    events[kind].append(event)
                if process is None and event.cat in HOST_CATEGORIES and isinstance(event.pid, int):
                    process = event.pid
        process = -1 if process is None else process
        tables = {
            kind: _table(kind, own, process) for kind, own in events.items() if kind not in ("messages", "graphs")
        }
        tables["messages"] = _messages(events["kernels"], process)
        for table in tables.values():
            refuse_absurd(table.numbers)
        gpus = tuple(dict.fromkeys(str(each["name"]) for each in document.deviceProperties or () if "name" in each))
        rank = document.distributedInfo.get("rank")
        marks = rank_marks([(process, name) for _, _, name, _ in tables["ranges"].groups])
        ranks = {process: rank} if isinstance(rank, int) else marks
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: no trace of PyTorch's profiler: its JSON has no list traceEvents of events: {error}"
        ) from error
    except MALFORMED as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        if isinstance(error, OverflowError):
            said = f"found a number that is too large, expected times of at most {MOST_NS / 1e9:.3g} s"
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: {said}") from error
    absent = {kind: NOT_RECORDED[kind] for kind in KINDS if kind not in tables or not len(tables[kind].code)}
    name = path.name.removesuffix(".gz").removesuffix(".json")
    base = document.baseTimeNanoseconds
    clock = f"counted from {base} ns" if isinstance(base, int) else None
    source = lambda kind, _, groups: _source(kind, tables[kind], groups)  # noqa: E731
    return Trace(name, source, absent, ranks, gpus, clock=clock)


def _document(path: Path) -> Document:
    most = max(SMALL_BYTES, MOST_TIMES * path.stat().st_size)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise TraceError(f"{path}: unpacks to more than {MOST_TIMES} times its size, expected about 15")
    try:
        return msgspec.json.decode(text, type=Document)
    except msgspec.DecodeError:
        if not NO_NUMBER.search(text):  # numbers that PyTorch writes and JSON has no words for
            raise
        return msgspec.json.decode(NO_NUMBER.sub(b"null", text), type=Document)


def _table(kind: str, events: list[Event], process: int) -> _Table:
    keys: dict[tuple[Any, ...], int] = {}
    code = [keys.setdefault(_key(kind, event), len(keys)) for event in events]
    start = np.array([_nanoseconds(event.ts) for event in events], np.int64)
    duration = np.array([_nanoseconds(event.dur) for event in events], np.int64)
    numbers = {"start": start, "end": start + duration, "duration": duration}
    for name in set(KINDS[kind].numbers) - numbers.keys():
        numbers[name] = np.array([_number(getattr(event.args, name), MISSING) for event in events], np.int64)
    return _Table([(process, *_described(kind, *key)) for key in keys], np.array(code, np.int32), numbers)


def _key(kind: str, event: Event) -> tuple[Any, ...]:
    """What tells events of different groups apart, as the file has it."""
    if kind in ("ranges", "api"):
        return event.cat, event.name, event.tid
    return event.cat, event.name, event.args.device, event.args.stream


def _described(kind: str, category: str, name: Any, *place: Any) -> tuple[Any, ...]:
    """The columns of a group, without its process."""
    numbers = tuple(map(_number, place))
    if kind == "ranges":
        return None, shared_name(str(name)), *numbers
    if kind == "api":
        return API_CATEGORIES[category.lower()], str(name), *numbers
    if kind == "kernels":
        return numbers[0], str(name), numbers[1]
    return numbers[0], _operation(category, str(name)), _host_memory(str(name)), numbers[1]


def _messages(kernels: list[Event], process: int) -> _Table:
    """Messages of communication kernels, counted as NCCL does: a rank's own part where parts differ."""
    keys: dict[tuple[Any, ...], int] = {}
    rows = []
    for event in kernels:
        arguments = event.args
        kind = collective_call(str(arguments.collective))
        if kind is None:
            continue
        element = ELEMENT_BYTES.get(str(arguments.dtype))
        elements = _number(arguments.received if kind in ("reduce_scatter", "recv") else arguments.sent)
        size = MISSING if element is None or elements is None else elements * element
        group = None if arguments.communicator is None else str(arguments.communicator)
        code = keys.setdefault((process, kind, _number(arguments.ranks), group, None), len(keys))
        correlation = _number(arguments.correlation, MISSING)
        rows.append((code, correlation, _nanoseconds(event.ts), size, _number(arguments.sequence, MISSING)))
    code, correlation, start, size, sequence = np.array(rows, np.int64).reshape(-1, 5).T
    numbers = {"correlation": correlation, "kernel_start": start, "start": start, "end": start}
    return _Table(list(keys), code.astype(np.int32), numbers | {"bytes": size, "sequence": sequence})


def _source(kind: str, table: _Table, groups: tuple[str, ...]) -> EventSource:
    """Events of a kind as one part."""
    coded = Groups()

    def read_all() -> Iterator[Batch]:
        yield Batch(coded.codes(picked(kind, groups, table.groups))[table.code], table.numbers)

    return EventSource([read_all], lambda: coded.keys)


def _nanoseconds(microseconds: float) -> int:
    return microseconds * 1000 if type(microseconds) is int else round(microseconds * 1000)


def _number(value: Any, otherwise: int | None = None) -> Any:
    return value if isinstance(value, int) else otherwise


def _operation(category: str, name: str) -> str:
    """Kind of a memory operation; of a copy from a name such as `Memcpy HtoD (Pageable -> Device)`."""
    if category.lower().endswith("memset"):
        return "memset"
    return next((operation for key, operation in COPY_NAMES.items() if key in name), "other")


def _host_memory(name: str) -> str | None:
    """Kind of host memory of a copy, told from the same name."""
    return next((kind.lower() for kind in ("Pageable", "Pinned") if kind in name), None)
