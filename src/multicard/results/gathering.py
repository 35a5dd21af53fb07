"""The gathered tables of a scenario: what its runs recorded, run by run, in one table of each kind."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from multicard.core.files import atomic_write
from multicard.core.layout import EPOCH_COLUMNS, GATHERED_ACTIVITIES, STEP_COLUMNS
from multicard.results import provenance
from multicard.results.run_files import RunFiles
from multicard.results.tables import RUNS_INFO, SCHEMAS, with_run


def tables_of(run: Path | RunFiles) -> dict[str, pa.Table]:
    """Return the tables of one run, by name, `run` in the first column; of a run that did not complete `runs_info`.

    Raises `UserError` if a file of the run is missing or damaged.
    """
    run = RunFiles.of(run)
    tables = {RUNS_INFO: pa.Table.from_pylist([_info(run)], SCHEMAS[RUNS_INFO])}
    if run.record.completed:
        for name in GATHERED_ACTIVITIES:
            tables[name] = run.activity(name, SCHEMAS[name].names)
        for name, columns in (("steps", STEP_COLUMNS), ("epochs", EPOCH_COLUMNS)):
            table = run.table(f"{name}.csv", ()).reindex(columns=columns)  # earlier versions had fewer
            tables[name] = pa.Table.from_pandas(table, SCHEMAS[name], preserve_index=False)
    return {name: _named(table, name, run.record.run) for name, table in tables.items()}


def joined(tables_of_runs: Iterable[dict[str, pa.Table]]) -> dict[str, pa.Table]:
    """Join the tables of several runs, by `tables_of`; there is a table of each name, which may be empty."""
    parts = {name: [with_run(schema).empty_table()] for name, schema in SCHEMAS.items()}
    for tables in tables_of_runs:
        for name, table in tables.items():
            parts[name].append(table)
    return {name: pa.concat_tables(tables) for name, tables in parts.items()}


def store(tables: dict[str, pa.Table], folder: Path) -> None:
    """Write tables into a scenario's folder."""
    for name, table in tables.items():
        with atomic_write(folder / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary)


def _named(table: pa.Table, name: str, run: str) -> pa.Table:
    """Return a table with the name of its run in the first column."""
    ids = pa.array([run] * table.num_rows, pa.string())
    return table.replace_schema_metadata(None).select(SCHEMAS[name].names).add_column(0, "run", ids)


def _info(run: RunFiles) -> dict[str, Any]:
    """Return where and with what a run was made; of a completed one also how many steps its trace has of a process."""
    record = run.record
    info = provenance.as_cells(provenance.provenance_of(record))
    info["variables"] = None if record.variables is None else json.dumps(record.variables)
    if record.completed:
        steps = run.traced_steps
        process_count = len(steps[["report", "process"]].drop_duplicates())
        info["traced_steps"] = len(steps) / process_count if process_count else None
        info["trace_missing"] = record.profiler.trace_missing
    return info
