"""Read an SQLite export of Nsight Systems.

Tables appear in an export only when something was recorded, and columns come and go between versions, so both are
looked up before they are read. Schema facts: NVIDIA's export schema documentation, and exports of many versions.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from multicard.core.errors import TraceError
from multicard.trace.encoding import encode, integers, refuse_absurd
from multicard.trace.model import (
    KINDS,
    NOT_RECORDED,
    Batch,
    BatchReader,
    EventSource,
    Groups,
    Trace,
    picked,
    rank_marks,
)
from multicard.trace.nsys_nccl import has_messages, messages
from multicard.trace.nsys_ranges import ranges
from multicard.trace.nsys_tables import (
    API_CLASSES,
    COPY_KINDS,
    HOST_MEMORY,
    MEMORY_POOLS,
    NAME_BITS,
    NEEDED,
    TABLES,
    TIMES,
    Packing,
    process_of,
    thread_of,
)
from multicard.trace.sqlite_file import SqliteFile

NEWEST_MAJOR = 3  # of the export schema; NVIDIA raises it when old queries stop working
MARK_TYPE, THREAD_TYPE, DOMAIN_TYPE = 34, 39, 75  # eventType in NVTX_EVENTS: marks, names of threads and of domains


def read(path: Path) -> Trace:
    """Open one export.

    Raises
    ------
    TraceError
        If the file is not an export that can be read. Damage that shows only later is raised while reading.
    """
    database = SqliteFile(path)
    if "StringIds" not in database.tables:
        raise TraceError(f"{path}: not an export of Nsight Systems: it has no table StringIds")
    metadata = _metadata(database)
    _check_schema(database.path, metadata)
    absent = {}
    for kind in KINDS:
        if kind == "ranges":
            found = "NVTX_EVENTS" in database.tables
        elif kind == "messages":
            found = has_messages(database)
        elif kind == "memory_use":
            found = "CUDA_GPU_MEMORY_USAGE_EVENTS" in database.tables
        else:
            found = any(table.name in database.tables for table in TABLES[kind])
        if not found:
            absent[kind] = NOT_RECORDED[kind]
    marks = _marks(database)

    def opened(kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
        if kind == "ranges":
            domains = {(process, number): text for kind, process, number, text in marks if kind == DOMAIN_TYPE}
            return ranges(database, domains)
        if kind == "messages":
            return messages(database)
        if kind == "memory_use":
            return _memory_use(database)
        return _source(database, kind, numbers, groups)

    ranks = rank_marks([(process, text) for kind, process, _, text in marks if kind != DOMAIN_TYPE])
    places = {kind: [table.name for table in tables] for kind, tables in TABLES.items()} | {"ranges": ["NVTX_EVENTS"]}
    events = {
        kind: sum(database.split(name)[1] for name in names if name in database.tables)
        for kind, names in places.items()
    }
    name = f"{path.stem} (synthetic)" if metadata.get("SYNTHETIC") else path.stem
    return Trace(name, opened, absent, ranks, _clock(database), events, _gpus(database))


def _metadata(database: SqliteFile) -> dict[str, str]:
    """What the export says of itself; the oldest say nothing."""
    found: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= database.tables.get(table, set()):
            found |= {str(name): str(value) for name, value in database.ask(f"SELECT name, value FROM {table}")}
    return found


def _check_schema(path: Path, metadata: dict[str, str]) -> None:
    """Refuse a schema that is newer than those that this reader was written for."""
    version = metadata.get("EXPORT_SCHEMA_VERSION", "0")
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) > NEWEST_MAJOR:
        raise TraceError(
            f"{path}: export schema {version[:40]} is not known, expected at most {NEWEST_MAJOR}.x: export the "
            "report with an older nsys"
        )


def _marks(database: SqliteFile) -> list[tuple[int, int | None, int | None, str]]:
    """Event type, process, domain and text of marks and names of threads that tell a rank, and of names of domains."""
    columns = database.tables.get("NVTX_EVENTS", set())
    if not {"eventType", "globalTid"} <= columns:
        return []
    text = "COALESCE(n.text, s.value)" if "textId" in columns else "n.text"
    names = "LEFT JOIN StringIds s ON s.id = n.textId" if "textId" in columns else ""
    domain = "n.domainId" if "domainId" in columns else "NULL"
    rows = database.ask(
        f"SELECT n.eventType, n.globalTid, {domain}, {text} FROM NVTX_EVENTS n {names} "
        f"WHERE n.eventType = {DOMAIN_TYPE} OR n.eventType = {MARK_TYPE} AND {text} LIKE 'rank:%' "
        f"OR n.eventType = {THREAD_TYPE} AND {text} LIKE 'MPI Rank %'"
    )
    return [(kind, process_of(thread), domain, str(text)) for kind, thread, domain, text in rows]


def _clock(database: SqliteFile) -> tuple[str, int] | None:
    """The host's clock, when host and session start are recorded: reports of one host can be put side by side."""
    if "utcEpochNs" not in database.tables.get("TARGET_INFO_SESSION_START_TIME", set()):
        return None
    if not {"name", "value"} <= database.tables.get("TARGET_INFO_SYSTEM_ENV", set()):
        return None
    starts = database.ask("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    hosts = database.ask("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'")
    if len(starts) != 1 or len(hosts) != 1 or not isinstance(starts[0][0], int):
        return None
    return str(hosts[0][0]), starts[0][0]


def _gpus(database: SqliteFile) -> tuple[str, ...]:
    """Names of the kinds of GPUs of the machine."""
    if "name" not in database.tables.get("TARGET_INFO_GPU", set()):
        return ()
    rows = database.ask("SELECT DISTINCT name FROM TARGET_INFO_GPU WHERE name IS NOT NULL ORDER BY name")
    return tuple(str(name) for (name,) in rows)


def _source(database: SqliteFile, kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
    """Events of a kind that lie in tables row by row."""
    found = Groups()
    parts: list[BatchReader] = []
    ids = database.ask("SELECT (SELECT min(id) FROM StringIds), (SELECT max(id) FROM StringIds)")[0]
    narrow = all(isinstance(number, int) and 0 <= number < 1 << NAME_BITS for number in ids)
    for table in TABLES[kind]:
        if table.name not in database.tables:
            continue
        columns = database.tables[table.name]
        fields = [field for name in groups for field in table.groups[name]]
        used = {field.expression for fs in table.groups.values() for field in fs} | set(table.numbers.values())
        lacking = sorted((NEEDED & used) - columns)
        if lacking:
            raise TraceError(f"{database.path}: {table.name} lacks the column {lacking[0]}: the schema is not known")
        packing = Packing([field._replace(expression=_present(field.expression, columns)) for field in fields], narrow)
        values = [_present(table.numbers[name], columns) for name in numbers]
        select = ", ".join(f"{expression} AS c{i}" for i, expression in enumerate([*packing.words, *values]))
        conditions, _ = database.split(table.name)
        for condition in conditions:
            query = f"SELECT {select} FROM {table.name} WHERE {condition}"
            parts.append(_part(database, query, packing, numbers, found))
    return EventSource(parts, lambda wanted: _described(database, kind, found.keys, groups, wanted))


def _present(expression: str, columns: set[str]) -> str:
    """A column as SQL, or NULL where the table lacks it; constants stay."""
    if expression in columns:
        return f'"{expression}"'
    # An identifier that is no column would be taken for one in quotes, or for a text.
    return "NULL" if expression.isidentifier() else expression


def _part(database: SqliteFile, query: str, packing: Packing, numbers: Sequence[str], groups: Groups) -> BatchReader:
    """Rows of a query whose first columns are the group, the others the numbers."""
    keys = len(packing.words)

    def read_part() -> Iterator[Batch]:
        with database.named():
            for rows in database.batches(query):
                codes, distinct = encode(rows.columns[:keys])
                arrays = [integers(column) for column in rows.columns[keys:]]
                refuse_absurd(dict(zip(numbers, arrays, strict=True)))
                known = groups.codes([packing.unpacked(words) for words in distinct])
                batch = Batch(known[codes], dict(zip(numbers, arrays, strict=True)))
                for name, column in zip(numbers, rows.columns[keys:], strict=True):
                    if column.null_count and name in TIMES and name != "correlation":  # an event without times is none
                        batch = batch.where(batch.numbers[name] >= 0)
                yield batch

    return read_part


def _described(
    database: SqliteFile, kind: str, keys: list[tuple[Any, ...]], groups: tuple[str, ...], wanted: tuple[str, ...]
) -> list[tuple[Any, ...]]:
    """Values of group columns, from the numbers that stand for them."""
    widths = [len(TABLES[kind][0].groups[name]) for name in groups]
    starts = dict(zip(groups, np.cumsum([0, *widths[:-1]]).tolist(), strict=True))
    decode: dict[str, Callable[..., Any]] = {
        "process": lambda number: number,
        "device": lambda number: number,
        "stream": lambda number: number,
        "thread": thread_of,
        "api": lambda number: API_CLASSES.get(number, "other"),
        "operation": lambda kind: COPY_KINDS.get(kind, "other"),
        "host_memory": lambda kind, source, target: HOST_MEMORY.get({1: source, 2: target}.get(kind)),
        "grid": _shape,
        "block": _shape,
    }
    if "name" in wanted:
        texts = database.texts(key[starts["name"]] for key in keys)
        decode["name"] = lambda number: texts.get(number, "")
    if kind == "metrics":
        # NVIDIA's own report scripts take the device from the lowest byte of typeId.
        decode["device"] = lambda kind: None if kind is None else kind & 0xFF
        names = {}
        if {"typeId", "metricId", "metricName"} <= database.tables.get("TARGET_INFO_GPU_METRICS", set()):
            rows = database.ask("SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS")
            names = {(kind, metric): str(name) for kind, metric, name in rows}
        decode["metric"] = lambda kind, metric: names.get((kind, metric), f"metric {metric}")
    ends = dict(zip(groups, np.cumsum(widths).tolist(), strict=True))
    where = [(decode[name], starts[name], ends[name]) for name in wanted]
    return [tuple(function(*key[first:last]) for function, first, last in where) for key in keys]


def _shape(x: int | None, y: int | None, z: int | None) -> str | None:
    return None if x is None or y is None or z is None else f"{x}×{y}×{z}"


def _memory_use(database: SqliteFile) -> EventSource:
    """Memory allocated since the capture began, after each allocation and release.

    Negative where more of what was there before was released than has been allocated since.
    """
    groups = Groups()
    columns = database.tables["CUDA_GPU_MEMORY_USAGE_EVENTS"]
    lacking = {"start", "globalPid", "deviceId", "bytes", "memoryOperationType"} - columns
    if lacking:
        raise TraceError(f"{database.path}: CUDA_GPU_MEMORY_USAGE_EVENTS lacks the column {min(lacking)}")

    def read_all() -> Iterator[Batch]:
        with database.named():
            found = list(
                database.batches(
                    f"SELECT globalPid, deviceId, {_present('memKind', columns)} AS pool, start, "
                    "CASE memoryOperationType WHEN 0 THEN bytes WHEN 1 THEN -bytes ELSE 0 END AS change "
                    "FROM CUDA_GPU_MEMORY_USAGE_EVENTS ORDER BY start"
                )
            )
            if not found:
                return
            rows = pa.Table.from_batches(found)
            codes, distinct = encode([column.combine_chunks() for column in rows.columns[:3]])
            start, change = (integers(column.combine_chunks()) for column in rows.columns[3:])
            refuse_absurd({"start": start})
            used = np.empty_like(change)
            for code in range(len(distinct)):
                own = codes == code
                used[own] = np.cumsum(change[own])
            yield Batch(groups.codes(distinct)[codes], {"start": start, "bytes": used})

    def described(wanted: tuple[str, ...]) -> list[tuple[Any, ...]]:
        keys = [(process_of(g), device, MEMORY_POOLS.get(pool, "unknown")) for g, device, pool in groups.keys]
        return picked("memory_use", wanted, keys)

    return EventSource([read_all], described)
