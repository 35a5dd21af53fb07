"""The gathered tables of a scenario: for each name, the rows of all its runs in one table."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from multicard.core.files import atomic_write
from multicard.core.layout import EPOCHS, GATHERED_ACTIVITIES, STEPS
from multicard.core.values import JsonObject, Row
from multicard.results import provenance
from multicard.results.run_files import RunFiles
from multicard.results.tables import RUNS_INFO, SCHEMAS, with_run
from multicard.runs.record import Observed, RunRecord


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
        tables["steps"] = _table_of_job(files, STEPS, SCHEMAS["steps"])
        tables["epochs"] = _table_of_job(files, EPOCHS, SCHEMAS["epochs"])
        for name, rows_of in _OBSERVED.items():
            tables[name] = pa.Table.from_pylist(rows_of(record), SCHEMAS[name])
    return {name: _with_run_column(table, name, record.run) for name, table in tables.items()}


def _table_of_job(run: RunFiles, name: str, schema: pa.Schema) -> pa.Table:
    """Return the table of steps or epochs that the job wrote."""
    return pa.Table.from_pandas(run.table(name), schema, preserve_index=False)


def _observed(record: RunRecord) -> Iterator[tuple[int, Observed]]:
    """Yield the number of each rank with what the observer saw of it."""
    for rank in record.ranks:
        if rank.observed is not None:
            yield rank.rank, rank.observed


def _host_work(record: RunRecord) -> list[Row]:
    """Return a row for each piece of work of each rank's host; the numbers of steps as text: `"10, 20"`."""
    return [
        {"rank": rank, **work.model_dump(), "first_steps": ", ".join(map(str, work.first_steps))}
        for rank, observed in _observed(record)
        for work in observed.host_work
    ]


def _code_lines(record: RunRecord) -> list[Row]:
    """Return a row for each line of the user's code where a rank was seen."""
    return [
        {
            "rank": rank, **line.model_dump(exclude={"samples"}), "samples_there": line.samples,
            "stack_samples": observed.stack_samples,
        }
        for rank, observed in _observed(record)
        for line in observed.lines
    ]  # fmt: skip


def _loaders(record: RunRecord) -> list[Row]:
    """Return a row for each loader of each rank."""
    return [
        {"rank": rank, **loader.model_dump(exclude={"distinct"})}
        for rank, observed in _observed(record)
        for loader in observed.loaders
    ]


def _training_setup(record: RunRecord) -> list[Row]:
    """Return a row for each rank; what it has several of as text: `"gloo, nccl"`."""
    return [
        {
            "rank": rank, **observed.setup.model_dump(), "backends": ", ".join(observed.setup.backends),
            "debugging": ", ".join(observed.setup.debugging),
        }
        for rank, observed in _observed(record)
        if observed.setup is not None
    ]  # fmt: skip


# Functions that make the tables of what the observer saw, by the names of these.
_OBSERVED: dict[str, Callable[[RunRecord], list[Row]]] = {
    "host_work": _host_work,
    "code_lines": _code_lines,
    "loaders": _loaders,
    "training_setup": _training_setup,
}


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
