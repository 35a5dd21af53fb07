"""Extract the activity tables of a run from its trace."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write, described, read_object, write_json
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, EXPORTED, TRACE
from multicard.profilers import PROFILERS
from multicard.runs.record import RankRecord
from multicard.trace.files import open_trace
from multicard.trace.model import Trace
from multicard.trace.tables import ACTIVITIES, STEPS, ActivityTables, activity_tables


def extract_run(folder: Path, ranks: Sequence[RankRecord]) -> None:
    """Write the activity tables of a run's steps, each as Parquet, and an index that lists which are recorded.

    `ranks`: those of the run's record, which say whose processes the trace shows.

    A table that the trace holds nothing for is written without rows and listed with the reason.
    """
    exported = read_object(folder / TRACE / EXPORTED)
    missing = exported["missing"]
    if missing is None and PROFILERS[exported["profiler"]].reader is None:
        missing = f"no activity tables are made of what {exported['profiler']} leaves"
    tables = ActivityTables({}, {})
    if missing is None:
        try:
            tables = activity_tables(_open_traces(folder, exported["files"], ranks), scope=STEPS)
        except TraceError as error:
            missing = str(error)
    write_tables(tables, folder, exported["profiler"], missing)


def _open_traces(folder: Path, entries: list[dict[str, Any]], ranks: Sequence[RankRecord]) -> list[Trace]:
    """Open the exported files of a run; a trace that states no ranks gets those that the run recorded.

    Raises `TraceError` if a file cannot be opened.
    """
    traces = [open_trace(folder / TRACE / entry["name"]) for entry in entries]
    for entry, trace in zip(entries, traces, strict=True):
        # Two nodes may share a process id.
        node = entry.get("node")
        near = [rank for rank in ranks if node in (None, rank.node)]
        rank_of_process = {rank.pid: rank.rank for rank in near if rank.pid is not None}
        trace.ranks = rank_of_process | trace.ranks
    return traces


def write_tables(tables: ActivityTables, folder: Path, profiler: str, missing: str | None = None) -> None:
    """Write activity tables into a run directory, the index with their checksums last.

    `missing`: why there is no trace, for tables that were not made.
    """
    index_path = folder / ACTIVITY / ACTIVITY_INDEX
    # An index may not list tables that are about to be replaced.
    index_path.unlink(missing_ok=True)
    index: dict[str, Any] = {}
    files = []
    for name, activity in ACTIVITIES.items():
        table = tables.table(name)
        is_recorded = name in tables.rows
        index[name] = {
            "rows": table.num_rows,
            "absent": None if is_recorded else missing or tables.absent[name],
            "description": activity.description,
        }
        path = folder / ACTIVITY / f"{name}.parquet"
        _write_table(table, activity.description, path)
        files.append(described(path))
    notices = [*tables.warnings, *tables.notices]
    write_json(index_path, {"profiler": profiler, "tables": index, "files": files, "notices": notices})


def _write_table(table: pa.Table, description: str, path: Path) -> None:
    metadata = {"multicard": json.dumps({"description": description})}
    with atomic_write(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary)
