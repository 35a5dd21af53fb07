"""A SQLite file, read column-wise and in parts that several threads can read at once."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import pyarrow as pa

from multicard.core.errors import TraceError

BATCH_ROWS = 32768
PART_ROWS = 250_000
MOST_PARTS = 512
LOCK_WAIT_S = 2.0


class SqliteFile:
    """A database that is only read.

    Attributes
    ----------
    path
        The file.
    tables
        Names of the columns of each table.

    Every method raises `TraceError` when the file is not a sound database, or another program has locked it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        names = [name for (name,) in self.ask("SELECT name FROM sqlite_master WHERE type = 'table'")]
        self.tables: dict[str, set[str]] = {
            name: {column for (column,) in self.ask("SELECT name FROM pragma_table_info(?)", name)} for name in names
        }

    @contextmanager
    def named(self) -> Iterator[None]:
        """Say which file an error is about: for what is done with its rows, too."""
        try:
            yield
        except (sqlite3.Error, adbc.Error, pa.ArrowException, OSError, ValueError, OverflowError) as error:
            if "is locked" in str(error):
                raise TraceError(f"{self.path}: locked, another program is writing to it") from error
            if "not a database" in str(error):
                raise TraceError(f"{self.path}: not a readable SQLite database: {error}") from error
            raise TraceError(f"{self.path}: cannot be read: {str(error)[:300]}") from error

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a small answer; text that is no UTF-8 keeps what can be read."""
        with self.named(), closing(sqlite3.connect(self._uri, uri=True, timeout=LOCK_WAIT_S)) as connection:
            connection.text_factory = readable
            return connection.execute(query, values).fetchall()

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Rows of a large answer, column-wise.

        The type of a column is told from its first batch, so a query makes sure that later rows fit it.
        """
        with (
            self.named(),
            adbc_driver_sqlite.connect(self._uri) as database,
            adbc.AdbcConnection(database) as connection,
            adbc.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(query)
            stream, _ = statement.execute_query()
            reader = pa.RecordBatchReader._import_from_c(stream.address)
            with closing(reader):
                yield from reader

    def split(self, table: str) -> tuple[list[str], int]:
        """Conditions that split a table into parts of about `PART_ROWS`, and about how many rows it has."""
        try:
            # two questions: one for both would read the whole table
            [(first, last)] = self.ask(f"SELECT (SELECT min(rowid) FROM {table}), (SELECT max(rowid) FROM {table})")
        except TraceError:
            return ["TRUE"], 0  # without row ids, or damaged: then reading it says so
        if first is None:
            return ["TRUE"], 0
        rows = last - first + 1
        if rows <= PART_ROWS:
            return ["TRUE"], max(0, rows)
        parts = min(MOST_PARTS, -(-rows // PART_ROWS))
        edges = [first + rows * part // parts for part in range(parts + 1)]
        return [f"rowid BETWEEN {low} AND {high - 1}" for low, high in pairwise(edges)], rows

    def texts(self, ids: Iterable[int | None]) -> dict[int | None, str]:
        """Strings by their ids, those that there are."""
        wanted = sorted({number for number in ids if number is not None})
        found: dict[int | None, str] = {}
        for at in range(0, len(wanted), 500):
            some = ",".join(map(str, wanted[at : at + 500]))
            found.update(self.ask(f"SELECT id, value FROM StringIds WHERE id IN ({some})"))
        return found


def readable(text: bytes) -> str:
    """Decode a text of the traced program, which may hold any bytes."""
    return text.decode("utf-8", "replace")
