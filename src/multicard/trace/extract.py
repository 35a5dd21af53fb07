"""Extract the activity tables of a run from its trace."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write, described, write_json
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, TRACE
from multicard.core.trace_manifests import TraceFile, read_exported
from multicard.core.values import JsonObject
from multicard.profilers import PROFILERS
from multicard.runs.record import RankRecord
from multicard.trace.files import open_trace
from multicard.trace.model import Trace
from multicard.trace.tables import ACTIVITIES, STEPS, ActivityTables, activity_tables


def extract_run(folder: Path, ranks: Sequence[RankRecord]) -> None:
    """Write the activity tables of a run's steps, each as a Parquet file, and an index of the tables.

    `folder`: that of the run. `ranks`: the ranks in the run's record, with the process id of each.

    A table for which the trace holds no events is written without rows, and the index states the reason.
    """
    exported = read_exported(folder / TRACE)
    missing = exported.missing
    if missing is None and PROFILERS[exported.profiler].reader is None:
        missing = f"no activity tables are made of what {exported.profiler} leaves"
    tables = ActivityTables({}, {})
    if missing is None:
        try:
            tables = activity_tables(_open_traces(folder, exported.files, ranks), scope=STEPS)
        except TraceError as error:
            missing = str(error)
    write_tables(tables, folder, exported.profiler, missing)


def _open_traces(folder: Path, files: Sequence[TraceFile], ranks: Sequence[RankRecord]) -> list[Trace]:
    """Open the exported files of a run, and add to each trace the ranks that the run recorded for its processes.

    If a trace states the rank of a process itself, that rank stays. Raises `TraceError` if a file cannot be opened.
    """
    traces = [open_trace(folder / TRACE / file.name) for file in files]
    for file, trace in zip(files, traces, strict=True):
        # Processes of two nodes may have the same id, so only ranks of the file's node count if that node is known.
        ranks_of_node = [rank for rank in ranks if file.node in (None, rank.node)]
        rank_of_process = {rank.pid: rank.rank for rank in ranks_of_node if rank.pid is not None}
        trace.ranks = rank_of_process | trace.ranks
    return traces


def write_tables(tables: ActivityTables, folder: Path, profiler: str, missing: str | None = None) -> None:
    """Write activity tables into the folder of a run, and after them the index, which has their checksums.

    `missing`: the reason why there is no trace, None if there is one. It is stated for each table that was not made.
    """
    index_path = folder / ACTIVITY / ACTIVITY_INDEX
    # The old index is deleted first, because the tables that it lists are about to be replaced.
    index_path.unlink(missing_ok=True)
    index: JsonObject = {}
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
