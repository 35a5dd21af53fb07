"""NVTX ranges of an SQLite export of Nsight Systems."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from multicard.core.errors import TraceError
from multicard.trace.encoding import encode, integers, refuse_absurd
from multicard.trace.model import (
    MISSING,
    SINGLE_CALL,
    Batch,
    BatchReader,
    EventSource,
    Groups,
    Integers,
    picked,
    shared_name,
)
from multicard.trace.nsys_tables import process_of, thread_of
from multicard.trace.sqlite_file import SqliteFile, readable
from multicard.trace.sqlite_pages import parts_of

RANGE_TYPES = (59, 60)  # eventType in NVTX_EVENTS: push/pop, start/end


class _Names:
    """Names of ranges by code."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        """Names in the order of their codes."""
        return list(self._codes)

    def codes(self, column: pa.Array) -> Integers:
        """Code of each text of a column without empty cells."""
        raw = pc.replace_substring_regex(column.cast(pa.binary()), pattern=f"(?s){SINGLE_CALL}", replacement="")
        encoded = raw.dictionary_encode()
        known = [self.code(readable(text)) for text in encoded.dictionary.to_pylist()]
        return np.array(known, np.int64)[integers(encoded.indices)]

    def code(self, text: str) -> int:
        """Code of a text."""
        return self._codes.setdefault(shared_name(text), len(self._codes))


def ranges(database: SqliteFile, domains: dict[tuple[int | None, int | None], str]) -> EventSource:
    """Closed ranges; one still open at the end of the capture has no end and is left out."""
    columns = database.tables["NVTX_EVENTS"]
    lacking = {"start", "end", "eventType", "globalTid", "text"} - columns
    if lacking:
        raise TraceError(f"{database.path}: NVTX_EVENTS lacks the column {min(lacking)}: the schema is not known")
    names = _Names()
    groups = Groups()
    domain = "domainId" if "domainId" in columns else "NULL"
    text_id = "textId" if "textId" in columns else "NULL"

    def part(condition: str) -> BatchReader:
        query = (
            f"SELECT globalTid, {domain} AS domain, {text_id} AS id, COALESCE(text, '') AS text, text IS NULL AS bare, "
            f'start, "end" FROM NVTX_EVENTS '
            f'WHERE eventType IN {RANGE_TYPES} AND "end" IS NOT NULL AND {condition}'
        )

        def read_part() -> Iterator[Batch]:
            with database.named():
                for rows in database.batches(query):
                    thread, in_domain, ids, text, bare, start, end = rows.columns
                    name = names.codes(text)
                    if (elsewhere := integers(bare) == 1).any():
                        codes, distinct = encode([integers(ids)])
                        texts = database.texts(number for (number,) in distinct)
                        known = [names.code(texts[n]) if n in texts else MISSING for (n,) in distinct]
                        name = np.where(elsewhere, np.array(known)[codes], name)
                    codes, distinct = encode([integers(thread), integers(in_domain), name])
                    times = integers(start), integers(end)
                    refuse_absurd({"start": times[0], "end": times[1]})
                    numbers = {"start": times[0], "end": times[1], "duration": times[1] - times[0]}
                    yield Batch(groups.codes(distinct)[codes], numbers)

        return read_part

    def described(wanted: tuple[str, ...]) -> list[tuple[Any, ...]]:
        found, texts = [], names.texts
        for thread, number, name in groups.keys:
            process = process_of(thread)
            text = texts[name] if name >= 0 else ""
            found.append((process, domains.get((process, number)), text, thread_of(thread)))
        return picked("ranges", wanted, found)

    return EventSource(list(map(part, parts_of(database, "NVTX_EVENTS"))), described)
