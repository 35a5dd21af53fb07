"""What NVTX recorded, in an SQLite export of Nsight Systems: ranges, and the sizes of NCCL's messages.

NCCL hands the sizes to NVTX with every call. An export holds them when it was made with `--include-blobs=true`. The
layout of a payload, as the nsys-ai project observed it in exports of 2026: the domain and the schema as 32-bit numbers
at bytes 0 and 8, the payload from byte 32 on, its fields where NVTX_PAYLOAD_SCHEMA_ENTRIES puts them.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import refuse_absurd
from multicard.trace.kernel_classes import collective_call
from multicard.trace.model import MISSING, Batch, EventSource, Groups, picked, shared_name
from multicard.trace.nsys_tables import process_of, thread_of
from multicard.trace.sqlite_file import SqliteFile

RANGE_TYPES = (59, 60)  # eventType in NVTX_EVENTS: push/pop, start/end
MOST_NAMES = 1 << 16  # that are kept for the calls to come; of operators each call may have its own
HEADER_BYTES = 32  # of a payload
SCHEMA_AT = 8
SIZE, RANKS, COMMUNICATOR = "Message size [bytes]", "No. of ranks", "NCCL communicator ID"
_NVTX = {"binaryData", "globalTid", "text", "textId", "domainId", "start"}
_ENTRIES = {"domainId", "schemaId", "name", "offset"}


def ranges(
    database: SqliteFile, domains: dict[tuple[int | None, int | None], str], wanted: tuple[str, ...]
) -> EventSource:
    """Closed ranges; one still open at the end of the capture has no end and is left out."""
    columns = database.tables["NVTX_EVENTS"]
    lacking = {"start", "end", "eventType", "globalTid", "text"} - columns
    if lacking:
        raise TraceError(f"{database.path}: NVTX_EVENTS lacks the column {min(lacking)}: the schema is not known")
    groups = Groups()
    domain = "domainId" if "domainId" in columns else "NULL"
    text, names = nvtx_text(columns)
    query = (
        f"SELECT globalTid, {domain}, COALESCE({text}, ''), start, \"end\" FROM NVTX_EVENTS n {names} "
        f'WHERE eventType IN {RANGE_TYPES} AND start IS NOT NULL AND "end" IS NOT NULL '
        "AND typeof(globalTid) = 'integer'"
    )

    def read_all() -> Iterator[Batch]:
        shared = lru_cache(MOST_NAMES)(shared_name)
        with database.named():
            for rows in database.batches(query):
                codes = groups.codes([(thread, number, shared(name)) for thread, number, name, _, _ in rows])
                start, end = np.array([row[3:] for row in rows], np.int64).T
                refuse_absurd({"start": start, "end": end})
                yield Batch(codes, {"start": start, "end": end, "duration": end - start})

    def described() -> list[tuple[Any, ...]]:
        keys = [(process_of(thread), number, name, thread_of(thread)) for thread, number, name in groups.keys]
        return picked("ranges", wanted, [(key[0], domains.get(key[:2]), *key[2:]) for key in keys])

    return EventSource([read_all], described)


def nvtx_text(columns: set[str]) -> tuple[str, str]:
    """The text of a row n of NVTX_EVENTS with these columns, in SQL, and what is joined for it."""
    if "textId" in columns:
        return "COALESCE(n.text, s.value)", "LEFT JOIN StringIds s ON s.id = n.textId"
    return "n.text", ""


def has_messages(database: SqliteFile) -> bool:
    """Whether the export holds sizes of messages."""
    tables = database.tables
    needed = {"NVTX_EVENTS": _NVTX, "NVTX_PAYLOAD_SCHEMA_ENTRIES": _ENTRIES}
    if any(columns - tables.get(name, set()) for name, columns in needed.items()):
        return False
    return bool(database.ask("SELECT 1 FROM NVTX_EVENTS WHERE binaryData IS NOT NULL LIMIT 1"))


def messages(database: SqliteFile, wanted: tuple[str, ...]) -> EventSource:
    """One event per call of a collective, or of a send or receive, with the thread and the times of the call."""
    groups = Groups()
    fields: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, name, offset in database.ask(
        "SELECT domainId, schemaId, name, offset FROM NVTX_PAYLOAD_SCHEMA_ENTRIES"
    ):
        if offset is None or isinstance(offset, int):
            fields.setdefault((domain, schema), {})[name] = offset or 0

    def read_all() -> Iterator[Batch]:
        with database.named():
            yield _calls(database, fields, groups)

    return EventSource([read_all], lambda: picked("messages", wanted, groups.keys))


def _calls(database: SqliteFile, fields: dict[tuple[int, int], dict[str, int]], groups: Groups) -> Batch:
    """Return the calls whose payload holds the size of a message; `fields` are offsets by domain and schema."""
    columns = database.tables["NVTX_EVENTS"]
    text, names = nvtx_text(columns)
    end_column = 'n."end"' if "end" in columns else "NULL"
    rows = database.ask(
        f"SELECT globalTid, domainId, {text}, start, {end_column}, binaryData FROM NVTX_EVENTS n {names} "
        "WHERE binaryData IS NOT NULL"
    )
    calls: list[tuple[tuple[int, int | None], str, int]] = []  # communicator, collective and thread
    numbers: list[tuple[int, int, int]] = []  # start, end and size
    ranks: dict[tuple[int, int | None], int] = {}
    for thread, domain, name, start, end, payload in rows:
        if not isinstance(payload, bytes) or len(payload) < HEADER_BYTES:
            continue
        if not isinstance(start, int) or not isinstance(thread, int):
            continue
        (schema,) = struct.unpack_from("<I", payload, SCHEMA_AT)
        offsets = fields.get((domain, schema), {})
        communicator = (process_of(thread), _field(payload, offsets.get(COMMUNICATOR), "<Q"))
        if RANKS in offsets:
            rank_count = _field(payload, offsets[RANKS], "<i")
            if rank_count:
                ranks[communicator] = rank_count
        size = _field(payload, offsets.get(SIZE), "<Q")
        collective = collective_call(str(name))
        if size is not None and collective is not None and size < 1 << 62:
            calls.append((communicator, collective, thread_of(thread)))
            numbers.append((start, end if isinstance(end, int) else start, size))
    # The number of ranks is in the call that made the communicator, which may come after in the export.
    keys = [
        (communicator[0], collective, ranks.get(communicator), _communicator_name(communicator[1]), thread)
        for communicator, collective, thread in calls
    ]
    start, end, size = np.array(numbers, np.int64).reshape(-1, 3).T
    missing = np.full(len(keys), MISSING)
    unknown = {"correlation": missing, "kernel_start": missing, "sequence": missing}
    return Batch(groups.codes(keys), {"start": start, "end": end, "bytes": size, **unknown})


def _communicator_name(identity: int | None) -> str | None:
    """Name of a communicator, which is the same on all of its ranks: NCCL's hash of its unique id."""
    return None if identity is None else f"{identity:#x}"


def _field(payload: bytes, offset: int | None, layout: str) -> int | None:
    if offset is None or offset < 0 or HEADER_BYTES + offset + struct.calcsize(layout) > len(payload):
        return None
    return struct.unpack_from(layout, payload, HEADER_BYTES + offset)[0]
