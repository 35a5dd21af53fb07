"""Where the events of each kind lie in an SQLite export of Nsight Systems, and what its numbers stand for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

# eventClass of CUPTI_ACTIVITY_KIND_RUNTIME, as ENUM_NSYS_EVENT_CLASS lists it. A backtrace row repeats a call that
# has a row of its own.
API_CLASSES = {0: "runtime", 1: "driver", 67: "backtrace"}

MEMSET = -1  # stands in the place of a copyKind
# copyKind, as ENUM_CUDA_MEMCPY_OPER of an export lists it; arrays count as device memory.
COPY_KINDS = {
    1: "host_to_device",
    2: "device_to_host",
    3: "host_to_device",
    4: "device_to_host",
    5: "device_to_device",
    6: "device_to_device",
    7: "device_to_device",
    8: "device_to_device",
    9: "host_to_host",
    10: "peer_to_peer",
    11: "unified_host_to_device",
    12: "unified_device_to_host",
    13: "unified_device_to_device",
    MEMSET: "memset",
}
# srcKind and dstKind, as ENUM_CUDA_MEM_KIND lists them.
HOST_MEMORY = {0: "pageable", 1: "pinned"}
MEMORY_POOLS = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device_static",
    6: "managed_static",
}


class Field(NamedTuple):
    """A part of what describes a group: a column or constant, and how many bits hold it.

    Fields of known width are packed into one integer by SQLite, since each value that crosses to Arrow costs some
    50 ns. 0 bits: the width is not known, or the column may be empty, which would empty what is packed with it.
    """

    expression: str
    bits: int = 0


class Table(NamedTuple):
    """How the events of a kind lie in one table: fields for each of its group columns, and its numbers."""

    name: str
    groups: dict[str, tuple[Field, ...]]
    numbers: dict[str, str]


NAME_BITS = 31  # checked against StringIds before it is relied on
_STREAM = {"stream": (Field("streamId", 32),)}  # CUPTI's numbers of streams have 32 bits; every row has one
_ON_DEVICE = {"process": (Field("globalPid", 24),), "device": (Field("deviceId", 8),)}
# The launch limits of CUDA: 2³¹ - 1, 65535 and 65535 blocks, 1024, 1024 and 64 threads.
_GRID = (Field("gridX", 31), Field("gridY", 16), Field("gridZ", 16))
_BLOCK = (Field("blockX", 11), Field("blockY", 11), Field("blockZ", 7))
TIMES = {
    "correlation": "correlationId",
    "start": "start",
    "end": "end",
    "duration": 'CAST("end" - start AS INT)',
}  # a difference that overflows is a float

TABLES: dict[str, tuple[Table, ...]] = {
    "api": (
        Table(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            {
                "process": (Field("globalTid", 24),),
                "api": (Field("eventClass", 8),),
                "name": (Field("nameId", NAME_BITS),),
                "thread": (Field("globalTid"),),
            },
            TIMES,
        ),
    ),
    "kernels": (
        Table(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            {**_ON_DEVICE, "name": (Field("demangledName", NAME_BITS),), "grid": _GRID, "block": _BLOCK, **_STREAM},
            TIMES,
        ),
    ),
    "memory": (
        Table(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {
                **_ON_DEVICE,
                "operation": (Field("copyKind"),),
                "host_memory": (Field("copyKind"), Field("srcKind"), Field("dstKind")),
                **_STREAM,
            },
            {"bytes": "bytes", **TIMES},
        ),
        Table(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            {
                **_ON_DEVICE,
                "operation": (Field(str(MEMSET)),),
                "host_memory": (Field(str(MEMSET)), Field("NULL"), Field("NULL")),
                **_STREAM,
            },
            {"bytes": "bytes", **TIMES},
        ),
    ),
    "metrics": (
        Table(
            "GPU_METRICS",
            {"device": (Field("typeId"),), "metric": (Field("typeId"), Field("metricId"))},
            {"start": "timestamp", "value": "value"},
        ),
    ),
}
# Columns without which a table says nothing.
NEEDED = {"start", "end", "globalTid", "globalPid", "nameId", "demangledName", "copyKind", "deviceId", "timestamp"}


def process_of(identity: int | None) -> int | None:
    """Process id in a globalTid or globalPid."""
    return None if identity is None else (identity >> 24) & 0xFFFFFF


def thread_of(identity: int | None) -> int | None:
    """Thread id in a globalTid."""
    return None if identity is None else identity & 0xFFFFFF


class Packing:
    """Fields packed into as few integers as hold them: `words` are these as SQL."""

    def __init__(self, fields: Sequence[Field], narrow: bool) -> None:
        """`narrow` says whether the ids of names fit their bits."""
        self._places: list[list[tuple[int, int]]] = []  # by word: number of the field and its bits
        used = 64
        for i, field in enumerate(fields):
            bits = field.bits if field.expression != "NULL" and (narrow or field.bits != NAME_BITS) else 0
            if bits and used + bits < 64:
                self._places[-1].append((i, bits))
                used += bits
            else:
                self._places.append([(i, bits)])
                used = bits or 64
        self._count = len(fields)
        self.words = [self._word([fields[i] for i, _ in places]) for places in self._places]

    @staticmethod
    def _word(fields: list[Field]) -> str:
        word = ""
        for field in fields:
            value = field.expression
            if value in ('"globalTid"', '"globalPid"') and field.bits:
                value = f"({value} >> 24 & 16777215)"
            if value == '"streamId"':
                value = f"({value} & 4294967295)"
            word = f"({word} << {field.bits} | {value})" if word else value
        return word

    def unpacked(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Values of the fields."""
        values: list[Any] = [None] * self._count
        for word, places in zip(words, self._places, strict=True):
            if word is None or len(places) == 1:
                values[places[0][0]] = word
                continue
            for i, bits in reversed(places):
                values[i] = word & ((1 << bits) - 1)
                word >>= bits
        return tuple(values)
