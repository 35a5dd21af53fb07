"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped.

A file is read piece by piece, and of each event only what tables are made of: never more than a piece of it is in
memory.
"""

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

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
    Trace,
    picked,
    rank_marks,
    shared_name,
)

PIECE_BYTES, END_BYTES = 1 << 20, 1 << 16
BETWEEN_EVENTS = re.compile(rb"\}\s*(,)\s*(?=\{)")
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


class Arguments(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event's `args`."""

    correlation: Any = None
    device: Any = None
    stream: Any = None
    grid: tuple[Any, ...] | str | float | None = None
    block: tuple[Any, ...] | str | float | None = None
    bytes: Any = None
    dtype: Any = None
    collective: Any = msgspec.field(default="", name="Collective name")
    ranks: Any = msgspec.field(default=None, name="Group size")
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")
    memory_of: Any = msgspec.field(default=None, name="Device Type")
    memory_device: Any = msgspec.field(default=None, name="Device Id")
    allocated: Any = msgspec.field(default=None, name="Total Allocated")
    reserved: Any = msgspec.field(default=None, name="Total Reserved")


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
    args: Arguments | None = _NO_ARGUMENTS


class Document(msgspec.Struct):
    """A whole file, or what is left of it without some of its events."""

    traceEvents: list[Event]  # noqa: N815, the name in the file
    deviceProperties: Any = None  # noqa: N815
    distributedInfo: Any = {}  # noqa: N815


def read(path: Path) -> Trace:
    """Read one trace.

    Raises
    ------
    TraceError
        If the file is not a trace.
    """
    found = _KinetoEvents()
    try:
        most = max(SMALL_BYTES, MOST_TIMES * path.stat().st_size)
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for document in _documents(cast("IO[bytes]", file), path, most):
                for event in document.traceEvents:
                    found.add(event)
        found.end(document)
    except msgspec.ValidationError as error:
        raise TraceError(
            f"{path}: no trace of PyTorch's profiler: its JSON has no list traceEvents of events: {error}"
        ) from error
    except MALFORMED as error:
        said = f"{type(error).__name__}: {str(error)[:200]}"
        if isinstance(error, OverflowError):
            said = f"found a number that is too large, expected times of at most {MOST_NS / 1e9:.3g} s"
        raise TraceError(f"{path}: not a readable PyTorch profiler trace: {said}") from error
    absent = {kind: NOT_RECORDED[kind] for kind in KINDS if kind not in found.kinds or not found.kinds[kind].code}
    name = path.name.removesuffix(".gz").removesuffix(".json")
    return Trace(name, lambda kind, _, groups: found.source(kind, groups), absent, found.ranks, gpus=found.gpus)


def _documents(file: IO[bytes], path: Path, most: int) -> Iterator[Document]:
    """Events of a file in pieces, in its order; the last one with what else it holds.

    A piece ends where an object seems to follow another one. That this is between two events, and not inside one, shows
    in that the piece can be decoded.
    """
    text = file.read(PIECE_BYTES)
    count = len(text)
    first = re.search(rb'"traceEvents"\s*:\s*\[', text)
    head = text[: first.end()] if first else b""
    text = text[len(head) :]
    while more := file.read(max(PIECE_BYTES, len(text))):
        text += more
        count += len(more)
        if path.suffix == ".gz" and count > most:
            raise TraceError(f"{path}: unpacks to more than {MOST_TIMES} times its size, expected about 15")
        if first:
            ends = [end.start(1) for end in BETWEEN_EVENTS.finditer(text, max(0, len(text) - END_BYTES))]
            try:
                if ends:
                    yield Document(_decoded(_EVENTS, b"[" + text[: ends[-1]] + b"]"))
                    text = text[ends[-1] + 1 :]
            except msgspec.DecodeError:
                continue  # the whole of it says whether anything is wrong
    yield _decoded(_DOCUMENT, head + text)


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes) -> Any:
    """What JSON says, in which PyTorch may have written numbers that JSON has no words for."""
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        if not NO_NUMBER.search(text):
            raise
        return decoder.decode(NO_NUMBER.sub(b"null", text))


_EVENTS, _DOCUMENT = msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Document)


class _Kind:
    """Events of a kind: of each the code of its group, and its numbers one after another."""

    def __init__(self) -> None:
        self.groups: dict[tuple[Any, ...], int] = {}
        self.code, self.numbers = array("i"), array("q")

    def add(self, group: tuple[Any, ...], *numbers: int) -> None:
        """Keep an event."""
        self.code.append(self.groups.setdefault(group, len(self.groups)))
        self.numbers.extend(numbers)


class _KinetoEvents:
    """Events of a file by kind, under groups that are described only when all events are there."""

    def __init__(self) -> None:
        self.kinds = {kind: _Kind() for kind in KINDS}
        self.process: int | None = None
        self._messages: list[tuple[tuple[Any, ...], int, int, int]] = []

    def add(self, event: Event) -> None:
        """Keep an event of those that tables are made of."""
        if event.ph != "X":
            if event.ph == "i" and event.name == "[memory]":
                self._add_memory_use(event)
            return
        # Device events carry the device in the place of the process.
        if self.process is None and event.cat in HOST_CATEGORIES and isinstance(event.pid, int):
            self.process = event.pid
        kind = KIND_OF.get(event.cat) or KIND_OF.get(str(event.cat).lower())
        if kind is None:
            return
        start = _nanoseconds(event.ts)
        end, arguments = start + _nanoseconds(event.dur), cast("Arguments", event.args)
        correlation = _number(arguments.correlation, MISSING)
        if kind == "ranges":
            self.kinds[kind].add((event.name, event.tid), start, end)
        elif kind == "api":
            self.kinds[kind].add((event.cat, event.name, event.tid), correlation, start, end)
        elif kind == "memory":
            group = (event.cat, event.name, arguments.device, arguments.stream)
            self.kinds[kind].add(group, correlation, _number(arguments.bytes, MISSING), start, end)
        else:
            group = (event.name, arguments.device, arguments.grid, arguments.block, arguments.stream)
            self.kinds[kind].add(group, correlation, start, end)
            if arguments.collective:
                self._add_message(arguments, correlation, start)

    def _add_message(self, arguments: Arguments, correlation: int, start: int) -> None:
        """Keep the message of a communication kernel, counted as NCCL does: a rank's own part where parts differ."""
        kind, size = collective_call(str(arguments.collective)), ELEMENT_BYTES.get(str(arguments.dtype))
        sent, received = _number(arguments.sent), _number(arguments.received)
        if kind is not None and size is not None and sent is not None and received is not None:
            elements = received if kind in ("reduce_scatter", "recv") else sent
            self._messages.append(((kind, _number(arguments.ranks)), correlation, start, elements * size))

    def _add_memory_use(self, event: Event) -> None:
        arguments = cast("Arguments", event.args)
        if arguments.memory_of == 1:  # a CUDA device
            for pool, size in (("torch_allocated", arguments.allocated), ("torch_reserved", arguments.reserved)):
                if isinstance(size, int):
                    self.kinds["memory_use"].add((arguments.memory_device, pool), _nanoseconds(event.ts), size)

    def end(self, document: Document) -> None:
        """Take what a file tells beside its events, and check what was kept."""
        api = self._numbers("api")
        calls: dict[int, int] = {}  # by correlation, when the first one began
        if self._messages:
            order = np.argsort(-api["start"], kind="stable")
            calls = dict(zip(api["correlation"][order].tolist(), api["start"][order].tolist(), strict=True))
            calls.pop(MISSING, None)
        for group, correlation, start, size in self._messages:  # a kernel's start where the call was not recorded
            self.kinds["messages"].add(group, calls.get(correlation, start), size)
        self.process = -1 if self.process is None else self.process
        names = [str(each["name"]) for each in document.deviceProperties or () if "name" in each]
        self.gpus = tuple(dict.fromkeys(names))
        rank = document.distributedInfo.get("rank")
        marks = rank_marks([(process, name) for process, _, name, _ in self._described("ranges")])
        self.ranks = {self.process: rank} if isinstance(rank, int) else marks
        for kind in self.kinds:
            refuse_absurd(self._numbers(kind))

    def _numbers(self, kind: str) -> dict[str, Any]:
        names = KINDS[kind].numbers
        values = np.array(self.kinds[kind].numbers, np.int64).reshape(-1, len(names))
        return dict(zip(names, values.T.copy(), strict=True))

    def _described(self, kind: str) -> list[tuple[Any, ...]]:
        """Groups of a kind by their codes."""
        process, found = self.process, list(self.kinds[kind].groups)
        if kind == "ranges":
            return [(process, None, shared_name(str(name)), _number(tid)) for name, tid in found]
        if kind == "api":
            return [(process, API_CATEGORIES[cat.lower()], str(name), _number(tid)) for cat, name, tid in found]
        if kind == "kernels":
            return [
                (process, _number(device), str(name), _shape(grid), _shape(block), _number(stream))
                for name, device, grid, block, stream in found
            ]
        if kind == "memory":
            return [
                (process, _number(device), _operation(cat, str(name)), _host_memory(str(name)), _number(stream))
                for cat, name, device, stream in found
            ]
        return [(process, *group) for group in found]

    def source(self, kind: str, groups: tuple[str, ...]) -> EventSource:
        """Events of a kind as one part."""
        own, coded = self.kinds[kind], Groups()

        def read_all() -> Iterator[Batch]:
            keys = picked(kind, groups, self._described(kind))
            numbers = self._numbers(kind)
            if "end" in numbers:
                numbers["duration"] = numbers["end"] - numbers["start"]
            yield Batch(coded.codes(keys)[np.array(own.code)], numbers)

        return EventSource(
            [read_all],
            lambda wanted: [tuple(dict(zip(groups, key, strict=True))[name] for name in wanted) for key in coded.keys],
        )


def _nanoseconds(microseconds: float) -> int:
    return microseconds * 1000 if type(microseconds) is int else round(microseconds * 1000)


def _number(value: Any, otherwise: int | None = None) -> Any:
    return value if isinstance(value, int) else otherwise


def _shape(value: Any) -> str | None:
    if isinstance(value, tuple) and len(value) == 3 and all(isinstance(size, int) for size in value):
        return "×".join(map(str, value))
    return None


def _operation(category: str, name: str) -> str:
    """Kind of a memory operation; of a copy from a name such as `Memcpy HtoD (Pageable -> Device)`."""
    if category.lower().endswith("memset"):
        return "memset"
    return next((operation for key, operation in COPY_NAMES.items() if key in name), "other")


def _host_memory(name: str) -> str | None:
    """Kind of host memory of a copy, told from the same name."""
    return next((kind.lower() for kind in ("Pageable", "Pinned") if kind in name), None)
