"""A SQLite file that is only read."""

import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.text import printable

BATCH_ROWS = 32768
LOCK_WAIT_S = 2.0


class SqliteFile:
    """A database that is only read; `tables` holds the names of the columns of each table.

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
        except (sqlite3.Error, OSError) as error:
            if "is locked" in str(error):
                raise TraceError(f"{self.path}: locked, another program is writing to it") from error
            if "not a database" in str(error):
                raise TraceError(f"{self.path}: not a readable SQLite database: {error}") from error
            raise TraceError(f"{self.path}: cannot be read: {str(error)[:300]}") from error
        except OverflowError as error:
            raise TraceError(f"{self.path}: cannot be read: found a number of more than 64 bits") from error
        except (ValueError, TypeError, struct.error) as error:
            # SQLite stores any type in any column, so what is done with a value may not fit it.
            found = str(error)[:300]
            if not found.startswith("found"):
                found = f"found a value of an unexpected type: {found}"
            raise TraceError(f"{self.path}: cannot be read: {printable(found)}") from error

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a small answer."""
        return [row for rows in self.batches(query, *values) for row in rows]

    def batches(self, query: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Rows of a large answer, many at a time; text that is no UTF-8 keeps what can be read."""
        with self.named(), closing(sqlite3.connect(self._uri, uri=True, timeout=LOCK_WAIT_S)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            cursor = connection.execute(query, values)
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield rows

    def texts(self, ids: Iterable[int | None]) -> dict[int | None, str]:
        """Strings by their ids, those that there are."""
        wanted = sorted({number for number in ids if number is not None})
        found: dict[int | None, str] = {}
        for at in range(0, len(wanted), 500):
            some = ",".join(map(str, wanted[at : at + 500]))
            found.update(self.ask(f"SELECT id, CAST(value AS TEXT) FROM StringIds WHERE id IN ({some})"))
        return {number: text for number, text in found.items() if text is not None}
