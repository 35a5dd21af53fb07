"""A SQLite file, asked for a few rows or read column-wise."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import pyarrow as pa

from multicard.core.errors import TraceError

BATCH_ROWS = 32768
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
