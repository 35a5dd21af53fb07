"""Sizes of NCCL's messages, which it hands to NVTX with every call, from an SQLite export of Nsight Systems.

An export holds them when it was made with `--include-blobs=true`. The layout of a payload, as the nsys-ai project
observed it in exports of 2026: the domain and the schema as 32-bit numbers at bytes 0 and 8, the payload from byte 32
on, its fields where NVTX_PAYLOAD_SCHEMA_ENTRIES puts them.
"""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from multicard.trace.kernel_classes import collective_call
from multicard.trace.model import Batch, EventSource, Groups, picked
from multicard.trace.nsys_tables import process_of
from multicard.trace.sqlite_file import SqliteFile

HEADER_BYTES = 32
SCHEMA_AT = 8
SIZE, RANKS, COMMUNICATOR = "Message size [bytes]", "No. of ranks", "NCCL communicator ID"
_NVTX = {"binaryData", "globalTid", "text", "textId", "domainId", "start"}
_ENTRIES = {"domainId", "schemaId", "name", "offset"}


def has_messages(database: SqliteFile) -> bool:
    """Whether the export holds sizes of messages."""
    tables = database.tables
    needed = {"NVTX_EVENTS": _NVTX, "NVTX_PAYLOAD_SCHEMA_ENTRIES": _ENTRIES}
    if any(columns - tables.get(name, set()) for name, columns in needed.items()):
        return False
    return bool(database.ask("SELECT 1 FROM NVTX_EVENTS WHERE binaryData IS NOT NULL LIMIT 1"))


def messages(database: SqliteFile, wanted: tuple[str, ...]) -> EventSource:
    """One event per call of a collective, or of a send or receive."""
    groups = Groups()
    fields: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, name, offset in database.ask(
        "SELECT domainId, schemaId, name, offset FROM NVTX_PAYLOAD_SCHEMA_ENTRIES"
    ):
        fields.setdefault((domain, schema), {})[name] = offset or 0

    def read_all() -> Iterator[Batch]:
        rows = database.ask(
            "SELECT n.globalTid, n.domainId, COALESCE(n.text, s.value), n.start, n.binaryData "
            "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.binaryData IS NOT NULL"
        )
        sizes: list[tuple[int, str, int, int, Any]] = []
        ranks: dict[tuple[int, int | None], int] = {}  # by process and communicator
        for thread, domain, name, start, payload in rows:
            if not isinstance(start, int) or not isinstance(payload, bytes) or len(payload) < HEADER_BYTES:
                continue
            (schema,) = struct.unpack_from("<I", payload, SCHEMA_AT)
            offsets = fields.get((domain, schema), {})
            process = process_of(thread)
            communicator = _field(payload, offsets.get(COMMUNICATOR), "<Q")
            if RANKS in offsets:
                number = _field(payload, offsets[RANKS], "<i")
                if number:
                    ranks[process, communicator] = number
            size, call = _field(payload, offsets.get(SIZE), "<Q"), collective_call(str(name))
            if size is not None and call is not None and size < 1 << 62:
                sizes.append((process, call, start, size, communicator))
        keys = [(process, call, ranks.get((process, communicator))) for process, call, *_, communicator in sizes]
        numbers = np.array([each[2:4] for each in sizes], np.int64).reshape(-1, 2)
        yield Batch(groups.codes(keys), {"start": numbers[:, 0], "bytes": numbers[:, 1]})

    return EventSource([read_all], lambda: picked("messages", wanted, groups.keys))


def _field(payload: bytes, offset: int | None, layout: str) -> int | None:
    if offset is None or HEADER_BYTES + offset + struct.calcsize(layout) > len(payload):
        return None
    return struct.unpack_from(layout, payload, HEADER_BYTES + offset)[0]
