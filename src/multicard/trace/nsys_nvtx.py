"""Read records of NVTX from an SQLite export of Nsight Systems: ranges, and the sizes of NCCL's messages.

NCCL passes the size of its message to NVTX with every call, as a binary payload. An export holds the payloads only if
it was made with `--include-blobs=true`. The nsys-ai project observed this layout in exports of 2026: the numbers of the
domain and of the schema are at bytes 0 and 8, in 32 bits each. The fields begin at byte 32. NVTX_PAYLOAD_SCHEMA_ENTRIES
states the offset of each field from there.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import refuse_absurd
from multicard.trace.kernel_classes import collective_of_call
from multicard.trace.model import MISSING, Batch, EventSource, Groups, picked, shared_name
from multicard.trace.nsys_tables import process_of, thread_of
from multicard.trace.sqlite_file import SqliteFile

# `eventType` in NVTX_EVENTS is 59 for ranges that were pushed and popped, and 60 for ranges that were started and
# ended.
RANGE_TYPES = (59, 60)
# Number of names in the cache of shortened names. It is limited because each call of an operator may have another name.
MOST_NAMES = 1 << 16

# Bytes before the first field of a payload, and the offset of the schema's number among them.
PAYLOAD_HEADER_BYTES = 32
SCHEMA_OFFSET = 8
# Names of the fields of NCCL's payloads.
SIZE = "Message size [bytes]"
RANK_COUNT = "No. of ranks"
COMMUNICATOR = "NCCL communicator ID"
# A call whose message seems to have this many bytes or more is left out, because its payload was misread.
MOST_MESSAGE_BYTES = 1 << 62

_PAYLOAD_COLUMNS = {"binaryData", "globalTid", "text", "textId", "domainId", "start"}
_SCHEMA_COLUMNS = {"domainId", "schemaId", "name", "offset"}

# For each domain and schema the offsets of a payload's fields in bytes, by the names of the fields.
Schemas = dict[tuple[int, int], dict[str, int]]


def ranges(database: SqliteFile, domains: dict[tuple[int, int | None], str], wanted: tuple[str, ...]) -> EventSource:
    """Return the ranges that were closed; a range that was open when the capture ended has no end and is left out.

    `domains`: names of domains by process id and number of the domain. The domain of a range is None if it has no name
    there. `wanted`: the group columns that are needed.

    Raises `TraceError` if NVTX_EVENTS lacks a column.
    """
    columns = database.tables["NVTX_EVENTS"]
    lacking = {"start", "end", "eventType", "globalTid", "text"} - columns
    if lacking:
        raise TraceError(f"{database.path}: NVTX_EVENTS lacks the column {min(lacking)}: the schema is not known")
    groups = Groups()
    domain_column = "domainId" if "domainId" in columns else "NULL"
    text, join = nvtx_text(columns)
    query = (
        f"SELECT globalTid, {domain_column}, COALESCE({text}, ''), start, \"end\" FROM NVTX_EVENTS n {join} "
        f'WHERE eventType IN {RANGE_TYPES} AND start IS NOT NULL AND "end" IS NOT NULL '
        "AND typeof(globalTid) = 'integer'"
    )

    def read_all() -> Iterator[Batch]:
        shared = lru_cache(MOST_NAMES)(shared_name)
        with database.named():
            for rows in database.batches(query):
                codes = groups.codes([(thread, domain, shared(name)) for thread, domain, name, _, _ in rows])
                start, end = np.array([row[3:] for row in rows], np.int64).T
                refuse_absurd({"start": start, "end": end})
                yield Batch(codes, {"start": start, "end": end, "duration": end - start})

    def described() -> list[tuple[Any, ...]]:
        keys = []
        for thread, domain, name in groups.keys:
            process = process_of(thread)
            keys.append((process, domains.get((process, domain)), name, thread_of(thread)))
        return picked("ranges", wanted, keys)

    return EventSource([read_all], described)


def nvtx_text(columns: set[str]) -> tuple[str, str]:
    """Return SQL for the text of a row of NVTX_EVENTS, and the SQL of the join that this needs, which may be empty.

    `columns`: the columns of NVTX_EVENTS in this export. The query must call the table `n`.
    """
    if "textId" in columns:
        return "COALESCE(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
    return "n.text", ""


def has_messages(database: SqliteFile) -> bool:
    """Return True if the export holds payloads; some of them may be sizes of messages."""
    if not database.tables.get("NVTX_EVENTS", set()) >= _PAYLOAD_COLUMNS:
        return False
    if not database.tables.get("NVTX_PAYLOAD_SCHEMA_ENTRIES", set()) >= _SCHEMA_COLUMNS:
        return False
    return bool(database.ask("SELECT 1 FROM NVTX_EVENTS WHERE binaryData IS NOT NULL LIMIT 1"))


def messages(database: SqliteFile, wanted: tuple[str, ...]) -> EventSource:
    """Return an event for each call of a collective, send or receive whose payload holds the size of the message.

    `wanted`: the group columns that are needed.
    """
    groups = Groups()
    schemas: Schemas = {}
    for domain, schema, name, offset in database.ask(
        "SELECT domainId, schemaId, name, offset FROM NVTX_PAYLOAD_SCHEMA_ENTRIES"
    ):
        # The offset of the first field of a schema may be empty; it is 0 then.
        if offset is None or isinstance(offset, int):
            schemas.setdefault((domain, schema), {})[name] = offset or 0

    def read_all() -> Iterator[Batch]:
        with database.named():
            yield _read_calls(database, schemas, groups)

    return EventSource([read_all], lambda: picked("messages", wanted, groups.keys))


class _Communicator(NamedTuple):
    """A communicator of a process; `identity` is NCCL's hash of its unique id, equal on all of its ranks."""

    process: int
    identity: int | None

    @property
    def name(self) -> str | None:
        """Name of the communicator in tables; None if its identity was not recorded."""
        return None if self.identity is None else f"{self.identity:#x}"


@dataclass(frozen=True)
class _Call:
    """A call of a collective, with the size of its message in bytes, and its start and end in nanoseconds."""

    communicator: _Communicator
    collective: str
    thread: int
    start: int
    end: int
    size: int


def _read_calls(database: SqliteFile, schemas: Schemas, groups: Groups) -> Batch:
    """Return the calls whose payload holds the size of a message."""
    columns = database.tables["NVTX_EVENTS"]
    text, join = nvtx_text(columns)
    end_column = 'n."end"' if "end" in columns else "NULL"
    rows = database.ask(
        f"SELECT globalTid, domainId, {text}, start, {end_column}, binaryData FROM NVTX_EVENTS n {join} "
        "WHERE binaryData IS NOT NULL"
    )
    calls: list[_Call] = []
    rank_counts: dict[_Communicator, int] = {}
    for thread, domain, name, start, end, payload in rows:
        if not isinstance(payload, bytes) or len(payload) < PAYLOAD_HEADER_BYTES:
            continue
        if not isinstance(start, int) or not isinstance(thread, int):
            continue
        (schema,) = struct.unpack_from("<I", payload, SCHEMA_OFFSET)
        offsets = schemas.get((domain, schema), {})
        communicator = _Communicator(process_of(thread), _field(payload, offsets.get(COMMUNICATOR), "<Q"))
        rank_count = _field(payload, offsets.get(RANK_COUNT), "<i")
        if rank_count:
            rank_counts[communicator] = rank_count
        size = _field(payload, offsets.get(SIZE), "<Q")
        collective = collective_of_call(str(name))
        if size is not None and collective is not None and size < MOST_MESSAGE_BYTES:
            # A call whose end was not recorded counts as one without duration.
            call_end = end if isinstance(end, int) else start
            calls.append(_Call(communicator, collective, thread_of(thread), start, call_end, size))
    return _batch(calls, rank_counts, groups)


def _batch(calls: list[_Call], rank_counts: dict[_Communicator, int], groups: Groups) -> Batch:
    """Return calls as events.

    `rank_counts`: the number of ranks of each communicator, from all calls of the export. Only the call that made a
    communicator states this number, and it may come after other calls of that communicator.
    """
    keys = [
        (
            call.communicator.process,
            call.collective,
            rank_counts.get(call.communicator),
            call.communicator.name,
            call.thread,
        )
        for call in calls
    ]
    start, end, size = np.array([(call.start, call.end, call.size) for call in calls], np.int64).reshape(-1, 3).T
    missing = np.full(len(calls), MISSING)
    numbers = {
        "start": start,
        "end": end,
        "bytes": size,
        "correlation": missing,
        "kernel_start": missing,
        "sequence": missing,
    }
    return Batch(groups.codes(keys), numbers)


def _field(payload: bytes, offset: int | None, layout: str) -> int | None:
    """Return the number at an offset of a payload's fields; `layout` is its format as in the module `struct`.

    Return None if the offset is None or negative, or the payload ends before the number does.
    """
    if offset is None or offset < 0:
        return None
    begin = PAYLOAD_HEADER_BYTES + offset
    if begin + struct.calcsize(layout) > len(payload):
        return None
    number: int = struct.unpack_from(layout, payload, begin)[0]
    return number
