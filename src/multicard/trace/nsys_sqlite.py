"""Read an SQLite export of Nsight Systems.

Tables appear in an export only when something was recorded, and columns come and go between versions, so both are
looked up before they are read. Schema facts: NVIDIA's export schema documentation, and exports of many versions.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import EMPTY, encode, refuse_absurd
from multicard.trace.model import (
    KINDS,
    MISSING,
    NOT_RECORDED,
    Batch,
    BatchReader,
    EventSource,
    Groups,
    Integers,
    Trace,
    rank_marks,
)
from multicard.trace.nsys_diagnostics import diagnostics, failed_launches
from multicard.trace.nsys_gpus import gpus_of
from multicard.trace.nsys_nvtx import has_messages, messages, nvtx_text, ranges
from multicard.trace.nsys_tables import (
    API_CLASSES,
    COPY_KINDS,
    HOST_MEMORY,
    NEEDED,
    TABLES,
    Table,
    process_of,
    thread_of,
)
from multicard.trace.sqlite_file import SqliteFile
from multicard.trace.sqlite_pages import Columns, integer_columns

NEWEST_MAJOR = 3  # of the export schema; NVIDIA raises it when old queries stop working
MARK_TYPE, THREAD_TYPE, DOMAIN_TYPE = 34, 39, 75  # eventType in NVTX_EVENTS: marks, names of threads and of domains


def read(path: Path) -> Trace:
    """Open one export.

    Raises `TraceError` if the file is not an export that can be read. Damage that shows only later is raised while
    reading.
    """
    database = SqliteFile(path)
    if "StringIds" not in database.tables:
        raise TraceError(f"{path}: not an export of Nsight Systems: it has no table StringIds")
    metadata = _metadata(database)
    _check_schema(database.path, metadata)
    places = {kind: [table.name for table in tables] for kind, tables in TABLES.items()} | {"ranges": ["NVTX_EVENTS"]}
    there = {kind: [name for name in names if name in database.tables] for kind, names in places.items()}
    recorded = {kind for kind, names in there.items() if names} | ({"messages"} if has_messages(database) else set())
    marks = _marks(database)

    def opened(kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
        if kind == "ranges":
            domains = {(process, number): text for kind, process, number, text in marks if kind == DOMAIN_TYPE}
            return ranges(database, domains, groups)
        if kind == "messages":
            return messages(database, groups)
        return _source(database, kind, numbers, groups)

    ranks = rank_marks([(process, text) for kind, process, _, text in marks if kind != DOMAIN_TYPE])
    absent = {kind: NOT_RECORDED[kind] for kind in KINDS if kind not in recorded}
    name = f"{path.stem} (synthetic)" if metadata.get("SYNTHETIC") else path.stem
    gpus = gpus_of(database)
    return Trace(
        name,
        opened,
        absent,
        ranks,
        gpus.names,
        gpus.count,
        gpus.identities,
        diagnostics=diagnostics(database),
        failed_launches=partial(failed_launches, database),
    )


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
    text, names = nvtx_text(columns)
    domain = "n.domainId" if "domainId" in columns else "NULL"
    rows = database.ask(
        f"SELECT n.eventType, n.globalTid, {domain}, {text} FROM NVTX_EVENTS n {names} "
        f"WHERE typeof(n.globalTid) = 'integer' AND (n.eventType = {DOMAIN_TYPE} "
        f"OR n.eventType = {MARK_TYPE} AND {text} LIKE 'rank:%' "
        f"OR n.eventType = {THREAD_TYPE} AND {text} LIKE 'MPI Rank %')"
    )
    return [(kind, process_of(thread), domain, str(text)) for kind, thread, domain, text in rows]


def _source(database: SqliteFile, kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
    """Events of a kind that lie in tables row by row."""
    found = Groups()
    parts: list[BatchReader] = []
    for table in TABLES[kind]:
        if table.name in database.tables:
            used = {column for columns in table.groups.values() for column in columns} | set(table.numbers.values())
            lacking = sorted((NEEDED & used) - database.tables[table.name])
            if lacking:
                raise TraceError(
                    f"{database.path}: {table.name} lacks the column {lacking[0]}: the schema is not known"
                )
            parts += _parts(database, table, numbers, groups, found)
    return EventSource(parts, lambda: _described(database, kind, found.keys, groups))


def _parts(
    database: SqliteFile, table: Table, numbers: Sequence[str], groups: Sequence[str], found: Groups
) -> list[BatchReader]:
    """Rows of a table; one without its times is no event."""
    fields = [(name, column) for name in groups for column in table.groups[name]]
    times = [name for name in ("start", "end") if name in table.numbers and {name, "duration"} & set(numbers)]
    values = {name: table.numbers[name] for name in (*times, *numbers) if name in table.numbers}
    used = {column for _, column in fields} | set(values.values())
    present = sorted(used & database.tables[table.name])

    def batch(rows: Columns) -> Batch:
        count = len(next(iter(rows.values())))

        def column(name: str | int | None) -> Integers:
            return rows[name] if name in rows else np.full(count, name if isinstance(name, int) else EMPTY)

        codes, distinct = encode([_identity(name, column(of)) for name, of in fields])
        arrays = {name: column(of) for name, of in values.items()}
        own = Batch(found.codes(distinct)[codes], arrays)
        for name in times:
            if arrays[name].min(initial=0) <= EMPTY:
                own = own.where(own.numbers[name] != EMPTY)
        refuse_absurd(own.numbers)
        for name in arrays.keys() - set(times):
            if arrays[name].min(initial=0) <= EMPTY:
                own.numbers[name] = np.where(own.numbers[name] == EMPTY, MISSING, own.numbers[name])
        if "end" in arrays:
            own.numbers["duration"] = own.numbers["end"] - own.numbers["start"]
        return own

    def reader(part: Callable[[], Iterator[Columns]]) -> BatchReader:
        def read() -> Iterator[Batch]:
            with database.named():
                yield from map(batch, part())

        return read

    return list(map(reader, integer_columns(database, table.name, present)))


def _identity(name: str, column: Integers) -> Integers:
    """A group column from the column of the table, which may hold more."""
    part = {"process": process_of, "thread": thread_of, "stream": lambda number: number & 0xFFFFFFFF}.get(name)
    if part is None:
        return column
    return np.where(column == EMPTY, EMPTY, part(column)) if column.min(initial=0) <= EMPTY else part(column)


def _described(
    database: SqliteFile, kind: str, keys: list[tuple[Any, ...]], groups: tuple[str, ...]
) -> list[tuple[Any, ...]]:
    """Values of group columns, from the numbers that stand for them."""
    widths = [len(TABLES[kind][0].groups[name]) for name in groups]
    ends = list(accumulate(widths))
    decode: dict[str, Callable[..., Any]] = {
        "api": lambda number: API_CLASSES.get(number, "other"),
        "operation": lambda kind: COPY_KINDS.get(kind, "other"),
        "host_memory": lambda kind, source, target: HOST_MEMORY.get({1: source, 2: target}.get(kind)),
    }
    if "name" in groups:
        at = ends[groups.index("name")] - 1
        texts = database.texts(key[at] for key in keys)
        decode["name"] = lambda number: texts.get(number, "")
    where = [
        (decode.get(name, lambda number: number), end - width, end)
        for name, width, end in zip(groups, widths, ends, strict=True)
    ]
    return [tuple(function(*key[first:last]) for function, first, last in where) for key in keys]
