"""Read a Chrome trace of PyTorch's profiler (Kineto), one file per rank, plain or gzipped."""

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    bytes: Any = None
    dtype: Any = None
    collective: Any = msgspec.field(default="", name="Collective name")
    ranks: Any = msgspec.field(default=None, name="Group size")
    sent: Any = msgspec.field(default=None, name="In msg nelems")
    received: Any = msgspec.field(default=None, name="Out msg nelems")


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


def read(path: Path) -> Trace:
    """Read one trace.

    Raises
    ------
    TraceError
        If the file is not a trace.
    """
    try:
        found = _KinetoEvents(_document(path))
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
    return Trace(name, lambda kind, _, groups: found.source(kind, groups), absent, found.ranks, found.gpus)


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
    """Events of a file by kind.

    Attributes
    ----------
    process
        Process id; device events carry the device in its place.
    ranks
        Rank by process id, as far as the file tells.
    gpus
        Names of the kinds of GPUs.
    """

    def __init__(self, document: Document) -> None:
        self.kinds = {kind: _Kind() for kind in KINDS}
        self._messages: list[tuple[tuple[Any, ...], int, int, int]] = []
        host = (event.pid for event in document.traceEvents if event.ph == "X" and event.cat in HOST_CATEGORIES)
        self.process = next((pid for pid in host if isinstance(pid, int)), -1)
        for event in document.traceEvents:
            if event.ph == "X":
                self._add(event)
        self._place_messages()
        names = [str(each["name"]) for each in document.deviceProperties or () if "name" in each]
        self.gpus = tuple(dict.fromkeys(names))
        rank = document.distributedInfo.get("rank")
        marks = rank_marks([(process, name) for process, _, name, _ in self._described("ranges")])
        self.ranks = {self.process: rank} if isinstance(rank, int) else marks
        for kind in self.kinds:
            refuse_absurd(self._numbers(kind))

    def _add(self, event: Event) -> None:
        kind = KIND_OF.get(event.cat) or KIND_OF.get(str(event.cat).lower())
        if kind is None:
            return
        start = _nanoseconds(event.ts)
        end, arguments = start + _nanoseconds(event.dur), event.args
        correlation = _number(arguments.correlation, MISSING)
        if kind == "ranges":
            self.kinds[kind].add((event.name, event.tid), start, end)
        elif kind == "api":
            self.kinds[kind].add((event.cat, event.name, event.tid), correlation, start, end)
        elif kind == "memory":
            group = (event.cat, event.name, arguments.device, arguments.stream)
            self.kinds[kind].add(group, correlation, _number(arguments.bytes, MISSING), start, end)
        else:
            self.kinds[kind].add((event.name, arguments.device, arguments.stream), correlation, start, end)
            if arguments.collective:
                self._add_message(arguments, correlation, start)

    def _add_message(self, arguments: Arguments, correlation: int, start: int) -> None:
        """Keep the message of a communication kernel, counted as NCCL does: a rank's own part where parts differ."""
        kind, size = collective_call(str(arguments.collective)), ELEMENT_BYTES.get(str(arguments.dtype))
        sent, received = _number(arguments.sent), _number(arguments.received)
        if kind is not None and size is not None and sent is not None and received is not None:
            elements = received if kind in ("reduce_scatter", "recv") else sent
            self._messages.append(((kind, _number(arguments.ranks)), correlation, start, elements * size))

    def _place_messages(self) -> None:
        """Give each message the start of the call that sent it; that of its kernel where the call was not recorded."""
        api = self._numbers("api")
        order = np.argsort(-api["start"], kind="stable")  # of calls with one correlation the first counts
        calls = dict(zip(api["correlation"][order].tolist(), api["start"][order].tolist(), strict=True))
        calls.pop(MISSING, None)
        for group, correlation, start, size in self._messages:
            self.kinds["messages"].add(group, calls.get(correlation, start), size)

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
            return [(process, _number(device), str(name), _number(stream)) for name, device, stream in found]
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


def _operation(category: str, name: str) -> str:
    """Kind of a memory operation; of a copy from a name such as `Memcpy HtoD (Pageable -> Device)`."""
    if category.lower().endswith("memset"):
        return "memset"
    return next((operation for key, operation in COPY_NAMES.items() if key in name), "other")


def _host_memory(name: str) -> str | None:
    """Kind of host memory of a copy, told from the same name."""
    return next((kind.lower() for kind in ("Pageable", "Pinned") if kind in name), None)
