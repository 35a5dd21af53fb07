"""Columns taken from pages, against what SQLite gives for the same file."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from multicard.core.errors import TraceError
from multicard.trace.encoding import EMPTY
from multicard.trace.sqlite_file import BatchSizes, SqliteFile
from multicard.trace.sqlite_pages import ColumnReader, integer_columns
from random_inputs import seeds

NAMES = ("a", "b", "c")
VALUES: tuple[Callable[[random.Random], int | None], ...] = (
    lambda chance: chance.choice([0, 1]),
    lambda chance: chance.randrange(-(1 << 7), 1 << 7),
    lambda chance: chance.randrange(-(1 << 62), 1 << 62) >> chance.randrange(62),
    lambda chance: chance.choice([None, 1 << 40]),
)


def table(path: Path, chance: random.Random, rows: int, columns: str, page_size: int = 4096) -> SqliteFile:
    """A table t with `columns`, among them `NAMES`, and gaps between its rows."""
    path.unlink(missing_ok=True)
    kinds = [chance.choice(VALUES) for _ in NAMES]
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {page_size}")
        db.execute(f"CREATE TABLE t ({columns})")
        db.executemany(
            "INSERT INTO t (a, b, c) VALUES (?, ?, ?)", [[kind(chance) for kind in kinds] for _ in range(rows)]
        )
        db.execute("DELETE FROM t WHERE abs(random()) % 5 = 0")
        db.commit()
    return SqliteFile(path)


def rows_of(readers: list[ColumnReader]) -> list[tuple[int, ...]]:
    batches = [batch for reader in readers for batch in reader()]
    return [row for batch in batches for row in zip(*(batch[name].tolist() for name in NAMES), strict=True)]


def columns_of(database: SqliteFile) -> list[tuple[int, ...]]:
    return rows_of(integer_columns(database, "t", NAMES))


def by_sqlite(database: SqliteFile) -> list[tuple[int, ...]]:
    rows = database.ask("SELECT a, b, c FROM t ORDER BY rowid")
    return [tuple(EMPTY if value is None else value for value in row) for row in rows]


@seeds(20, 200)
def test_columns_are_those_of_sqlite(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    sizes = BatchSizes(page_bytes=1 << chance.randrange(9, 16))
    columns = ["a INTEGER", "b INTEGER", "c INTEGER", "d REAL DEFAULT 0.5", "e TEXT DEFAULT 'text'", "f INTEGER"]
    chance.shuffle(columns)
    size = 1 << chance.randrange(10, 17)
    database = table(tmp_path / "t.sqlite", chance, chance.choice([1, 50, 20_000]), ", ".join(columns), size)
    database = SqliteFile(database.path, sizes)
    expected = by_sqlite(database)
    if expected:
        readers = integer_columns(database, "t", NAMES)
        # From here on the rows can come from the pages alone.
        monkeypatch.setattr(database, "batches", None)
        assert rows_of(readers) == expected


@pytest.mark.parametrize(
    "columns",
    [
        "a, b, c INTEGER PRIMARY KEY",
        "a, b, c, d GENERATED ALWAYS AS (a + 1) STORED",
        f"x DEFAULT '{'longer ' * 20}', a, b, c",
        f"x DEFAULT '{'long ' * 3000}', a, b, c",
        "a, b REAL, c",
        "a, b, c",
    ],
    ids=["row id", "generated", "text", "overflow", "real", "ordinary"],
)
@pytest.mark.parametrize("later", ["", "ALTER TABLE t ADD y", "PRAGMA journal_mode = WAL"])
def test_what_is_stored_otherwise_is_left_to_sqlite(columns: str, later: str, tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE t ({columns}\n)")
        db.executemany("INSERT INTO t (a, b, c) VALUES (?, ?, ?)", [(7, -n, n) for n in range(1, 301)])
        db.execute(later)
        db.commit()
        database = SqliteFile(path)
        assert columns_of(database) == [(7, -n, n) for n in range(1, 301)]


def test_a_damaged_file_is_an_error_or_read(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    table(path, random.Random(2), 20_000, "a, b, c")
    content = path.read_bytes()
    for seed in range(40):
        chance = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(20):
            damaged[chance.randrange(4096, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice([len(damaged), chance.randrange(4096, len(damaged))])])
        try:
            database = SqliteFile(path)
            with database.named():
                columns_of(database)
        except TraceError as error:
            assert str(error).startswith(f"{path}: ")
