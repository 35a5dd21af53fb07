"""Read an SQLite file, and report what is wrong with it as one line."""

import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.text import printable

# A query waits at most this long for another program to release its lock.
LOCK_WAIT_S = 2.0
# A query lists at most this many ids, because SQLite limits the length of a query.
IDS_PER_QUERY = 500


@dataclass(frozen=True)
class BatchSizes:
    """How much of a file is read at a time.

    `rows`: number of rows of a query's answer that make a batch. `page_bytes`: number of bytes that make a batch where
    pages are read without SQLite (`sqlite_pages`). With smaller batches there are more calls, and larger ones do not
    fit a core's cache. `batches_per_part`: number of such batches that make a part of a table; one thread reads a whole
    part.
    """

    rows: int = 32768
    page_bytes: int = 1 << 21
    batches_per_part: int = 16


DEFAULT_BATCH_SIZES = BatchSizes()


class SqliteFile:
    """An SQLite database that is only read; `tables` holds the names of the columns, by name of the table.

    Every method raises `TraceError` if the file is not a sound database, or another program has locked it.
    """

    def __init__(self, path: Path, batch_sizes: BatchSizes = DEFAULT_BATCH_SIZES) -> None:
        self.path = path
        self.batch_sizes = batch_sizes
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        self.tables: dict[str, set[str]] = {}
        for (table,) in self.ask("SELECT name FROM sqlite_master WHERE type = 'table'"):
            columns = self.ask("SELECT name FROM pragma_table_info(?)", table)
            self.tables[table] = {column for (column,) in columns}

    @contextmanager
    def named(self) -> Iterator[None]:
        """Turn an error of the block into a `TraceError` that names the file.

        The block reads rows or computes with their values.
        """
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if "is locked" in str(error):
                raise TraceError(f"{self.path}: locked, another program is writing to it") from error
            if "not a database" in str(error):
                raise TraceError(f"{self.path}: not a readable SQLite database: {error}") from error
            raise TraceError(f"{self.path}: cannot be read: {str(error)[:300]}") from error
        except OverflowError as error:
            raise TraceError(f"{self.path}: cannot be read: found a number of more than 64 bits") from error
        except (ValueError, TypeError, struct.error) as error:
            # SQLite stores values of any type in any column, so a computation may fail on any value. An error that this
            # project raised itself, such as `refuse_absurd` does, begins with "found" and needs no explanation.
            problem = str(error)[:300]
            if not problem.startswith("found"):
                problem = f"found a value of an unexpected type: {problem}"
            raise TraceError(f"{self.path}: cannot be read: {printable(problem)}") from error

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query with a small answer."""
        return [row for rows in self.batches(query, *values) for row in rows]

    def batches(self, query: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query in batches. Bytes of a text that are not UTF-8 are replaced."""
        with self.named(), closing(sqlite3.connect(self._uri, uri=True, timeout=LOCK_WAIT_S)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            cursor = connection.execute(query, values)
            while rows := cursor.fetchmany(self.batch_sizes.rows):
                yield rows

    def texts(self, ids: Iterable[int | None]) -> dict[int, str]:
        """Return the strings that an export of Nsight Systems holds in its table StringIds, by id.

        Left out are ids that are None or not in the table, and ids without a string.
        """
        wanted = sorted({number for number in ids if number is not None})
        texts: dict[int, str] = {}
        for begin in range(0, len(wanted), IDS_PER_QUERY):
            listed = ",".join(map(str, wanted[begin : begin + IDS_PER_QUERY]))
            rows = self.ask(f"SELECT id, CAST(value AS TEXT) FROM StringIds WHERE id IN ({listed})")
            texts |= {number: text for number, text in rows if text is not None}
        return texts
