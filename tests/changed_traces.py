"""Captures that are changed after they were written, and all that multicard says of a capture, to be compared."""

import json
import math
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from multicard.trace.files import open_trace
from multicard.trace.tables import CAPTURE, activity_tables

Rows = list[dict[str, Any]]


def rows_of(path: Path, **options: Any) -> dict[str, Rows]:
    return activity_tables([open_trace(path)], **options).rows


def change(path: Path, *statements: str) -> Path:
    """Have SQLite change an export of nsys."""
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def change_events(path: Path, edit: Callable[[Rows], object]) -> Path:
    """Change the list of events of a trace of PyTorch's profiler."""
    document = json.loads(path.read_text())
    edit(document["traceEvents"])
    path.write_text(json.dumps(document))
    return path


def shuffled(path: Path, seed: int) -> Path:
    """Put the rows of each table of an export of nsys into a random order, with new row numbers."""
    order = random.Random(seed)
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            (row_count,) = db.execute(f'SELECT count(*) FROM main."{table}"').fetchone()
            rows = order.sample(range(1, row_count + 1), row_count)
            db.execute(f'CREATE TABLE temp.copied AS SELECT * FROM main."{table}"')
            db.execute("CREATE TABLE temp.places (place INTEGER PRIMARY KEY, row INT)")
            db.executemany("INSERT INTO temp.places VALUES (?, ?)", enumerate(rows))
            db.execute(f'DELETE FROM main."{table}"')
            db.execute(
                f'INSERT INTO main."{table}" '
                "SELECT copied.* FROM places JOIN copied ON copied.rowid = row ORDER BY place"
            )
            db.execute("DROP TABLE temp.copied")
            db.execute("DROP TABLE temp.places")
        db.commit()
    return path


def answers(path: Path, scope: str = CAPTURE) -> dict[str, Any]:
    """All that the tables of an export say, and what the export says of itself."""
    trace = open_trace(path)
    tables = activity_tables([trace], scope=scope)
    return {
        "rows": tables.rows, "absent": tables.absent, "warnings": tables.warnings, "notices": tables.notices,
        "ranks": trace.ranks, "gpus": trace.gpus, "diagnostics": trace.diagnostics,
    }  # fmt: skip


def assert_equal_but_for_the_last_digit(found: Any, expected: Any, place: str = "") -> None:
    """Sums of numbers in another order may differ in their last digit, and all else is equal."""
    assert type(found) is type(expected), place
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key, value in expected.items():
            assert_equal_but_for_the_last_digit(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal_but_for_the_last_digit(one, other, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-12) or (math.isnan(found) and math.isnan(expected)), place
    else:
        assert found == expected, place
