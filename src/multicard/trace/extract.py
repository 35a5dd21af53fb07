"""Extract the activity tables of a run from its trace."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from multicard.core.errors import TraceError
from multicard.core.files import atomic_write, described, read_object, write_json
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, EXPORTED, RUN, TRACE
from multicard.profilers import PROFILERS
from multicard.trace.files import open_trace
from multicard.trace.tables import ACTIVITIES, STEPS, ActivityTables, activity_tables


def extract_run(folder: Path) -> None:
    """Write the activity tables of a run's steps, each as Parquet, and an index that says which are recorded.

    A table that the trace holds nothing for is written without rows and listed with the reason.
    """
    exported = read_object(folder / TRACE / EXPORTED)
    missing = exported["missing"]
    if missing is None and PROFILERS[exported["profiler"]].reader is None:
        missing = f"no activity tables are made of what {exported['profiler']} leaves"
    found = ActivityTables({}, {})
    if missing is None:
        ranks = read_object(folder / RUN).get("ranks") or []
        try:
            traces = [open_trace(folder / TRACE / entry["name"]) for entry in exported["files"]]
            for entry, trace in zip(exported["files"], traces, strict=True):
                # Two nodes may share a process id.
                near = [r for r in ranks if entry.get("node") in (None, r.get("node"))]
                trace.ranks = {r["pid"]: r["rank"] for r in near} | trace.ranks
            found = activity_tables(traces, scope=STEPS)
        except TraceError as error:
            missing = str(error)

    write_tables(found, folder, exported["profiler"], missing)


def write_tables(found: ActivityTables, folder: Path, profiler: str, missing: str | None = None) -> None:
    """Write activity tables into a run directory, the index with their checksums last.

    `missing`: why there is no trace, for tables that were not made.
    """
    path = folder / ACTIVITY / ACTIVITY_INDEX
    path.unlink(missing_ok=True)  # of tables that are about to be replaced
    index: dict[str, Any] = {}
    files = []
    for name, activity in ACTIVITIES.items():
        table = found.table(name)
        absent = None if name in found.rows else missing or found.absent[name]
        index[name] = {"rows": table.num_rows, "absent": absent, "description": activity.description}
        table = table.replace_schema_metadata({"multicard": json.dumps({"description": activity.description})})
        with atomic_write(folder / ACTIVITY / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary)
        files.append(described(folder / ACTIVITY / f"{name}.parquet"))
    notices = [*found.warnings, *found.notices]
    write_json(path, {"profiler": profiler, "tables": index, "files": files, "notices": notices})
