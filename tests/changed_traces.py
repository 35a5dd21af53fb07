"""Captures that are changed after they were written, and the rows of tables of one."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables

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
