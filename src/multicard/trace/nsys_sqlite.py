"""Read an SQLite export of Nsight Systems.

Tables appear in an export only when something was recorded, and columns come and go between versions, so both are
looked up before they are read. Schema facts: NVIDIA's export schema documentation, and exports of many versions.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import adbc_driver_sqlite.dbapi
import pyarrow as pa

from multicard.launch.nsys import TraceError
from multicard.trace.model import EVENTS, Trace, rank_marks

RANGE_TYPES = (59, 60)  # push/pop, start/end
MARK_TYPE = 34
# eventClass of CUPTI_ACTIVITY_KIND_RUNTIME, as ENUM_NSYS_EVENT_CLASS lists it. A backtrace row repeats a call that
# has a row of its own.
API_CLASSES = {0: "runtime", 1: "driver", 67: "backtrace"}

PROCESS = "(globalTid >> 24) & 0xFFFFFF"
THREAD = "globalTid & 0xFFFFFF"
PROCESS_OF_DEVICE = "(globalPid >> 24) & 0xFFFFFF"

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


def read(path: Path) -> Trace:
    """Read one export.

    Raises
    ------
    TraceError
        If the file is not a readable export.
    """
    tables = _columns(path)
    if "StringIds" not in tables:
        raise TraceError(f"{path}: not an export of Nsight Systems: it has no table StringIds")
    queries = {
        "ranges": _ranges(tables),
        "api": _api(tables),
        "kernels": _kernels(tables),
        "memory": _memory(tables),
    }
    trace = Trace({})
    try:
        with adbc_driver_sqlite.dbapi.connect(_read_only(path)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, value FROM StringIds")
            found = cursor.fetch_arrow_table()
            values = found["value"].cast(pa.binary()).to_pylist()
            strings = dict(zip(found["id"].to_pylist(), map(_readable, values), strict=True))
            for kind, query in queries.items():
                if query is None:
                    trace.absent[kind] = "the capture holds no such events"
                    continue
                cursor.execute(query)
                trace.events[kind] = _with_texts(cursor.fetch_arrow_table(), strings).select(EVENTS[kind].names)
                trace.events[kind] = trace.events[kind].cast(EVENTS[kind])
            if "NVTX_EVENTS" in tables:
                cursor.execute(_marks(tables))
                marks = _with_texts(cursor.fetch_arrow_table(), strings)
                trace.ranks = rank_marks(marks["name"].to_pylist(), marks["process"].to_pylist())
    except (adbc_driver_sqlite.dbapi.Error, pa.ArrowException, ValueError, OverflowError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    return trace


def _readable(text: bytes | None) -> str | None:
    """Decode a text of the traced program, which may hold any bytes."""
    return None if text is None else text.decode("utf-8", "replace")


def _with_texts(events: pa.Table, strings: dict[int, str | None]) -> pa.Table:
    """Encode the texts of events; most come as numbers that stand for them."""
    texts: dict[str, Callable[[Any], str | None]] = {
        "name": lambda number: strings.get(number) or "",
        "api": lambda number: API_CLASSES.get(number, "other"),
        "operation": lambda number: COPY_KINDS.get(number, "other"),
        "host_memory": HOST_MEMORY.get,
    }
    for position, field in enumerate(events.schema):
        if pa.types.is_string(field.type):
            column = _encoded(events[field.name].cast(pa.binary()), _readable)
        elif field.name in texts:
            column = _encoded(events[field.name], texts[field.name])
        else:
            continue
        events = events.set_column(position, field.name, column)
    return events


def _encoded(column: pa.ChunkedArray, text_of: Callable[[Any], str | None]) -> pa.DictionaryArray:
    """Encode a column by the text of each value; equal texts share a code, no text gives an empty cell."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = [None if value is None else text_of(value) for value in encoded.dictionary.to_pylist()]
    distinct = {text: code for code, text in enumerate(dict.fromkeys(text for text in texts if text is not None))}
    codes = pa.array([distinct.get(text) for text in texts], pa.int32())
    return pa.DictionaryArray.from_arrays(codes.take(encoded.indices), pa.array(list(distinct), pa.string()))


def _read_only(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


def _columns(path: Path) -> dict[str, set[str]]:
    """Column names by table."""
    try:
        with closing(sqlite3.connect(_read_only(path), uri=True)) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            found = {}
            for name in names:
                rows = connection.execute("SELECT name FROM pragma_table_info(?)", (name,))
                found[name] = {row[0] for row in rows}
            return found
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: not a readable SQLite database: {error}") from error


def _range_name(tables: dict[str, set[str]]) -> str:
    if "textId" in tables["NVTX_EVENTS"]:
        return "COALESCE(n.text, s.value, '')"
    return "COALESCE(n.text, '')"


def _from_nvtx(tables: dict[str, set[str]]) -> str:
    if "textId" in tables["NVTX_EVENTS"]:
        return "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId"
    return "FROM NVTX_EVENTS n"


def _ranges(tables: dict[str, set[str]]) -> str | None:
    """Query of closed ranges; a range still open at the end of the capture has no end and is left out."""
    if "NVTX_EVENTS" not in tables:
        return None
    return f"""
        SELECT {PROCESS} AS process, {THREAD} AS thread, {_range_name(tables)} AS name,
               n.start AS start_ns, n.end AS end_ns
        {_from_nvtx(tables)}
        WHERE n.eventType IN {RANGE_TYPES} AND n.end IS NOT NULL
        ORDER BY n.start
    """


def _marks(tables: dict[str, set[str]]) -> str:
    return f"""
        SELECT {PROCESS} AS process, {_range_name(tables)} AS name
        {_from_nvtx(tables)}
        WHERE n.eventType = {MARK_TYPE}
    """


def _api(tables: dict[str, set[str]]) -> str | None:
    if "CUPTI_ACTIVITY_KIND_RUNTIME" not in tables:
        return None
    return f"""
        SELECT {PROCESS} AS process, {THREAD} AS thread, correlationId AS correlation,
               eventClass AS api,
               nameId AS name, start AS start_ns, end AS end_ns
        FROM CUPTI_ACTIVITY_KIND_RUNTIME
    """


def _kernels(tables: dict[str, set[str]]) -> str | None:
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
        return None
    return f"""
        SELECT {PROCESS_OF_DEVICE} AS process, deviceId AS device, correlationId AS correlation,
               demangledName AS name, start AS start_ns, end AS end_ns
        FROM CUPTI_ACTIVITY_KIND_KERNEL
    """


def _memory(tables: dict[str, set[str]]) -> str | None:
    parts = []
    if "CUPTI_ACTIVITY_KIND_MEMCPY" in tables:
        host_memory = "NULL"
        if {"srcKind", "dstKind"} <= tables["CUPTI_ACTIVITY_KIND_MEMCPY"]:
            host_memory = "CASE copyKind WHEN 1 THEN srcKind WHEN 2 THEN dstKind END"
        parts.append(f"""
            SELECT {PROCESS_OF_DEVICE} AS process, deviceId AS device,
                   copyKind AS operation, {host_memory} AS host_memory,
                   bytes, start AS start_ns, end AS end_ns
            FROM CUPTI_ACTIVITY_KIND_MEMCPY
        """)
    if "CUPTI_ACTIVITY_KIND_MEMSET" in tables:
        parts.append(f"""
            SELECT {PROCESS_OF_DEVICE} AS process, deviceId AS device, {MEMSET} AS operation,
                   NULL AS host_memory, bytes, start AS start_ns, end AS end_ns
            FROM CUPTI_ACTIVITY_KIND_MEMSET
        """)
    return " UNION ALL ".join(parts) or None
