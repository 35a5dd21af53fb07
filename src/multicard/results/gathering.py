"""The gathered tables of a scenario: for each name, the rows of all its runs in one table."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from multicard.core.files import atomic_write
from multicard.core.layout import EPOCH_COLUMNS, GATHERED_ACTIVITIES, STEP_COLUMNS
from multicard.core.values import JsonObject
from multicard.results import provenance
from multicard.results.run_files import RunFiles
from multicard.results.tables import RUNS_INFO, SCHEMAS, with_run


def tables_of(run: Path | RunFiles) -> dict[str, pa.Table]:
    """Return the tables of one run by name, with `run` as the first column.

    A run that did not complete has only the table `runs_info`.

    Raises `UserError` if a file of the run is missing or damaged.
    """
    files = RunFiles.of(run)
    record = files.record
    tables = {RUNS_INFO: pa.Table.from_pylist([_info(files)], SCHEMAS[RUNS_INFO])}
    if record.completed:
        for name in GATHERED_ACTIVITIES:
            tables[name] = files.activity(name, SCHEMAS[name].names)
        tables["steps"] = _table_of_job(files, "steps", STEP_COLUMNS)
        tables["epochs"] = _table_of_job(files, "epochs", EPOCH_COLUMNS)
    return {name: _with_run_column(table, name, record.run) for name, table in tables.items()}


def _table_of_job(run: RunFiles, name: str, columns: Sequence[str]) -> pa.Table:
    """Return the table of steps or epochs that the job wrote. Columns that it lacks are empty."""
    recorded = run.table(f"{name}.csv", ())
    # Earlier versions recorded fewer columns.
    rows = recorded.reindex(columns=columns)
    return pa.Table.from_pandas(rows, SCHEMAS[name], preserve_index=False)


def joined(tables_of_runs: Iterable[dict[str, pa.Table]]) -> dict[str, pa.Table]:
    """Join the tables that `tables_of` returned for several runs.

    The result has every table of `SCHEMAS`; a table that no run has is without rows.
    """
    parts: dict[str, list[pa.Table]] = {}
    for name, schema in SCHEMAS.items():
        parts[name] = [with_run(schema).empty_table()]
    for tables in tables_of_runs:
        for name, table in tables.items():
            parts[name].append(table)
    return {name: pa.concat_tables(tables) for name, tables in parts.items()}


def store(tables: dict[str, pa.Table], folder: Path) -> None:
    """Write each table as `<name>.parquet` into a scenario's folder."""
    for name, table in tables.items():
        with atomic_write(folder / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary)


def _with_run_column(table: pa.Table, name: str, run: str) -> pa.Table:
    """Return the columns of `SCHEMAS[name]`, preceded by a column `run` that holds the name of the run in each row."""
    columns = table.select(SCHEMAS[name].names)
    # Tables that were made from DataFrames carry pandas' metadata. It is removed, so that it is not stored.
    bare = columns.replace_schema_metadata(None)
    run_names = pa.array([run] * table.num_rows, pa.string())
    return bare.add_column(0, "run", run_names)


def _info(run: RunFiles) -> JsonObject:
    """Return the row of `runs_info`: the machine, versions and variables of a run.

    A completed run also has `traced_steps` and `trace_missing`. `traced_steps` is the number of steps in the trace of
    one process, averaged over the processes; None if the trace shows no step.
    """
    record = run.record
    origin = provenance.provenance_of(record)
    info = provenance.as_cells(origin)
    info["variables"] = None if record.variables is None else json.dumps(record.variables)
    if record.completed:
        steps = run.traced_steps
        processes = steps[["report", "process"]].drop_duplicates()
        process_count = len(processes)
        info["traced_steps"] = len(steps) / process_count if process_count else None
        info["trace_missing"] = record.profiler.trace_missing
    return info
