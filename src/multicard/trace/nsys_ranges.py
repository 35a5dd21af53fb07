"""NVTX ranges of an SQLite export of Nsight Systems."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from multicard.core.errors import TraceError
from multicard.trace.encoding import refuse_absurd
from multicard.trace.model import Batch, EventSource, Groups, picked, shared_name
from multicard.trace.nsys_tables import process_of, thread_of
from multicard.trace.sqlite_file import SqliteFile

RANGE_TYPES = (59, 60)  # eventType in NVTX_EVENTS: push/pop, start/end
MOST_NAMES = 1 << 16  # that are kept for the calls to come; of operators each call may have its own


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
