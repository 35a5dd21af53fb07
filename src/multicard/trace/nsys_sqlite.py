"""Read an SQLite export of Nsight Systems as a `Trace`, whose events `captured_events` collects.

An export has a table only if something was recorded for it, and the columns of a table differ between versions. So this
module looks up which tables and columns exist before it reads them. Sources: NVIDIA's documentation of the export
schema, and exports of many versions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import EMPTY, encode, refuse_absurd
from multicard.trace.model import (
    MISSING,
    Batch,
    BatchReader,
    EventSource,
    Groups,
    Integers,
    Trace,
    rank_marks,
    reasons_for_absent,
)
from multicard.trace.nsys_diagnostics import diagnostics, failed_launches
from multicard.trace.nsys_gpus import gpus_of
from multicard.trace.nsys_nvtx import has_messages, messages, nvtx_text, ranges
from multicard.trace.nsys_tables import (
    API_CLASSES,
    COPY_KINDS,
    REQUIRED_COLUMNS,
    TABLES,
    Column,
    EventTable,
    host_memory,
    process_of,
    thread_of,
)
from multicard.trace.sqlite_file import DEFAULT_BATCH_SIZES, BatchSizes, SqliteFile
from multicard.trace.sqlite_pages import ColumnReader, Columns, integer_columns

# Newest major version of the export schema that this module reads. NVIDIA raises it when old queries stop working.
NEWEST_MAJOR = 3

# Values of `eventType` in NVTX_EVENTS.
MARK = 34
THREAD_NAME = 39
DOMAIN_NAME = 75


def read(path: Path, batch_sizes: BatchSizes = DEFAULT_BATCH_SIZES) -> Trace:
    """Open one export.

    Raises `TraceError` if the file is not an export that can be read. Reading its events raises `TraceError` if damage
    shows only then.
    """
    database = SqliteFile(path, batch_sizes)
    if "StringIds" not in database.tables:
        raise TraceError(f"{path}: not an export of Nsight Systems: it has no table StringIds")
    metadata = _metadata(database)
    _check_schema(path, metadata)
    names = _nvtx_names(database)

    def open_kind(kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
        if kind == "ranges":
            domains = {(name.process, name.domain): name.text for name in names if name.event_type == DOMAIN_NAME}
            return ranges(database, domains, groups)
        if kind == "messages":
            return messages(database, groups)
        return _source(database, kind, numbers, groups)

    recorded = _recorded_kinds(database)
    gpus = gpus_of(database)
    return Trace(
        name=f"{path.stem} (synthetic)" if metadata.get("SYNTHETIC") else path.stem,
        open=open_kind,
        absent=reasons_for_absent(recorded),
        ranks=rank_marks([(name.process, name.text) for name in names if name.event_type != DOMAIN_NAME]),
        gpus=gpus.names,
        gpu_count=gpus.gpu_count,
        gpu_identities=gpus.identities,
        diagnostics=diagnostics(database),
        failed_launches=partial(failed_launches, database),
    )


def _recorded_kinds(database: SqliteFile) -> set[str]:
    """Return the kinds of events for which the export has a table or, for messages, payloads."""
    recorded: set[str] = set()
    for event_kind, tables in TABLES.items():
        if any(table.name in database.tables for table in tables):
            recorded.add(event_kind)
    if "NVTX_EVENTS" in database.tables:
        recorded.add("ranges")
    if has_messages(database):
        recorded.add("messages")
    return recorded


def _metadata(database: SqliteFile) -> dict[str, str]:
    """Return the properties that the export states about itself, by name; the oldest exports state none."""
    metadata: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if {"name", "value"} <= database.tables.get(table, set()):
            metadata |= {str(name): str(value) for name, value in database.ask(f"SELECT name, value FROM {table}")}
    return metadata


def _check_schema(path: Path, metadata: dict[str, str]) -> None:
    """Raise `TraceError` if the major version of the schema is above `NEWEST_MAJOR`, or is not a number."""
    version = metadata.get("EXPORT_SCHEMA_VERSION", "0")
    major = version.partition(".")[0]
    if not major.isdecimal() or int(major) > NEWEST_MAJOR:
        raise TraceError(
            f"{path}: export schema {version[:40]} is not known, expected at most {NEWEST_MAJOR}.x: export the "
            "report with an older nsys"
        )


@dataclass(frozen=True)
class _NvtxName:
    """The text of a mark or the name of a thread, which may state a rank, or the name of a domain.

    `event_type`: `MARK`, `THREAD_NAME` or `DOMAIN_NAME`. `domain`: number of the domain; None if it was not recorded.
    """

    event_type: int
    process: int
    domain: int | None
    text: str


def _nvtx_names(database: SqliteFile) -> list[_NvtxName]:
    """Return the names of domains, and the marks and names of threads that may state a rank, in order of time."""
    columns = database.tables.get("NVTX_EVENTS", set())
    if not {"eventType", "globalTid", "start"} <= columns:
        return []
    text, join = nvtx_text(columns)
    domain_column = "n.domainId" if "domainId" in columns else "NULL"
    rows = database.ask(
        f"SELECT n.eventType, n.globalTid, {domain_column}, {text} FROM NVTX_EVENTS n {join} "
        f"WHERE typeof(n.globalTid) = 'integer' AND (n.eventType = {DOMAIN_NAME} "
        f"OR n.eventType = {MARK} AND {text} LIKE 'rank:%' "
        f"OR n.eventType = {THREAD_NAME} AND {text} LIKE 'MPI Rank %') ORDER BY n.start"
    )
    return [_NvtxName(event_type, process_of(thread), domain, str(name)) for event_type, thread, domain, name in rows]


def _source(database: SqliteFile, kind: str, numbers: tuple[str, ...], groups: tuple[str, ...]) -> EventSource:
    """Return the events of a kind that `TABLES` lists: its tables have a row for each event."""
    codes = Groups()
    readers: list[BatchReader] = []
    for table in TABLES[kind]:
        if table.name in database.tables:
            _check_columns(database, table)
            readers += _EventRows(database, table, numbers, groups, codes).readers()
    return EventSource(readers, lambda: _described(database, groups, codes.keys))


def _check_columns(database: SqliteFile, table: EventTable) -> None:
    """Raise `TraceError` if a table lacks one of `REQUIRED_COLUMNS` that its events are read from."""
    group_columns = {column for columns in table.groups.values() for column in columns}
    used = group_columns | set(table.numbers.values())
    lacking = (REQUIRED_COLUMNS & used) - database.tables[table.name]
    if lacking:
        raise TraceError(f"{database.path}: {table.name} lacks the column {min(lacking)}: the schema is not known")


class _EventRows:
    """Reads the rows of a table as events, with the numbers and group columns that are wanted."""

    def __init__(
        self, database: SqliteFile, table: EventTable, numbers: Sequence[str], groups: Sequence[str], codes: Groups
    ) -> None:
        self._database = database
        self._table = table
        self._codes = codes
        self._group_columns = [(group, column) for group in groups for column in table.groups[group]]
        # The table has no column of durations: a duration is computed from both times.
        wanted_times = [name for name in ("start", "end") if name in numbers or "duration" in numbers]
        self._times = [name for name in wanted_times if name in table.numbers]
        wanted_numbers = [*self._times, *numbers]
        self._number_columns = {name: table.numbers[name] for name in wanted_numbers if name in table.numbers}

    def readers(self) -> list[BatchReader]:
        """Return a reader for each part of the table, which yields the events of that part in batches."""
        used = {column for _, column in self._group_columns if isinstance(column, str)}
        used |= set(self._number_columns.values())
        available = sorted(used & self._database.tables[self._table.name])
        parts = integer_columns(self._database, self._table.name, available)
        return [partial(self._read, part) for part in parts]

    def _read(self, part: ColumnReader) -> Iterator[Batch]:
        with self._database.named():
            for columns in part():
                yield self._batch(columns)

    def _batch(self, columns: Columns) -> Batch:
        """Return some rows as events.

        A row is left out if one of its wanted times is empty. Any other empty number becomes `MISSING`.
        """
        row_count = len(next(iter(columns.values())))
        group_values: list[Integers] = []
        for group, column in self._group_columns:
            group_values.append(_group_value(group, _values(columns, column, row_count)))
        row_codes, distinct_rows = encode(group_values)
        numbers = {name: _values(columns, column, row_count) for name, column in self._number_columns.items()}
        batch = Batch(self._codes.codes(distinct_rows)[row_codes], numbers)

        # `EMPTY` stands for an empty cell and is below all other values. Most batches have no empty cell, and the least
        # value shows that faster than a mask does.
        has_empty = {name for name, values in numbers.items() if values.min(initial=0) <= EMPTY}
        for name in self._times:
            if name in has_empty:
                has_time = batch.numbers[name] != EMPTY
                batch = batch.where(has_time)
        # Raises a ValueError at times that would overflow; `SqliteFile.named` turns it into a `TraceError`.
        refuse_absurd(batch.numbers)
        for name in has_empty - set(self._times):
            values = batch.numbers[name]
            batch.numbers[name] = np.where(values == EMPTY, MISSING, values)
        if "end" in batch.numbers:
            batch.numbers["duration"] = batch.numbers["end"] - batch.numbers["start"]
        return batch


def _values(columns: Columns, column: Column, row_count: int) -> Integers:
    """Return a value for each row: that of the column, `EMPTY` if the table lacks it, or `column` if it is a number."""
    if isinstance(column, int):
        return np.full(row_count, column)
    if column is None or column not in columns:
        return np.full(row_count, EMPTY)
    return columns[column]


def _group_value(group: str, values: Integers) -> Integers:
    """Return the values of a group column, from the values of the table's column that holds it.

    A column of threads holds both the process id and the thread id, and only the lower 32 bits of a stream count. Other
    columns are returned as they are. `EMPTY` stays `EMPTY`.
    """
    if group == "process":
        part = process_of(values)
    elif group == "thread":
        part = thread_of(values)
    elif group == "stream":
        part = values & 0xFFFFFFFF
    else:
        return values
    if values.min(initial=0) > EMPTY:
        return part
    return np.where(values == EMPTY, EMPTY, part)


def _described(database: SqliteFile, groups: Sequence[str], keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the values of the group columns `groups`, from the numbers that stand for them in the export.

    `keys`: for each group these numbers, in the order of `groups`: three for `host_memory`, and one for any other
    column.
    """
    if not keys:
        return []
    numbers = zip(*keys, strict=True)
    described: list[Sequence[Any]] = []
    for group in groups:
        column = next(numbers)
        if group == "name":
            texts = database.texts(column)
            described.append([texts.get(number, "") for number in column])
        elif group == "api":
            described.append([API_CLASSES.get(number, "other") for number in column])
        elif group == "operation":
            described.append([COPY_KINDS.get(number, "other") for number in column])
        elif group == "host_memory":
            # The three numbers are the kind of the copy, and the kinds of the memory at its source and at its target.
            copies = zip(column, next(numbers), next(numbers), strict=True)
            described.append([host_memory(copy_kind, source, target) for copy_kind, source, target in copies])
        else:
            described.append(column)
    return list(zip(*described, strict=True))
