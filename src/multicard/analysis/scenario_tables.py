"""A scenario's tables in one folder: the measures, and what its completed runs recorded, run by run.

Whoever draws or judges a scenario reads these and opens neither run directories nor traces.
"""

import json
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from multicard.analysis.runs.run_files import RunFiles, check_unchanged, files_in, read_csv, read_parquet, selected
from multicard.core.errors import UserError
from multicard.core.files import atomic_write, read_object
from multicard.core.layout import EPOCH_COLUMNS, GATHERED_ACTIVITIES, NOT_RUN, SCENARIO_INDEX, STEP_COLUMNS
from multicard.core.text import for_csv, from_csv
from multicard.runs.environment import machine_in_words, versions_in_words
from multicard.runs.parameter_types import own_value
from multicard.runs.parameters import ARGS_PREFIX
from multicard.trace.tables import ACTIVITIES

MEASURES = "measures.csv"
OUTCOME_TABLE = "runs.csv"

_INTEGERS = ("rank", "epoch", "step")
_TEXTS = ("window", "machine", "versions", "variables", "trace_missing")


def _recorded(columns: Iterable[str]) -> pa.Schema:
    """Columns of a table that is not of activities."""
    kinds = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_INTEGERS, pa.int64())
    return pa.schema([(name, kinds.get(name, pa.float64())) for name in columns])


# Columns of each table, without `run`, which comes first in all of them. Of `runs_info` there is a row per run.
SCHEMAS: dict[str, pa.Schema] = {
    **{name: ACTIVITIES[name].schema for name in GATHERED_ACTIVITIES},
    "steps": _recorded(STEP_COLUMNS),
    "epochs": _recorded(EPOCH_COLUMNS),
    "runs_info": _recorded(("machine", "versions", "variables", "traced_steps", "trace_missing")),
}


def read_checked(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV file of a scenario, or of all scenarios, with options of pandas.

    Raises `UserError` if it is not there, was cut or altered, or does not parse.
    """
    check_whole(path)
    return from_cells(read_csv(path, **options))


def read_columns(path: Path) -> pd.DataFrame:
    """Read the measures of a scenario. Of a user's own parameters only an empty cell is empty, not "None".

    Raises `UserError` as `read_checked`.
    """
    table = read_checked(path)
    own = [name for name in table if name.startswith(ARGS_PREFIX)]
    if own:
        cells = read_csv(path, usecols=own, dtype=str, keep_default_na=False)
        values = {name: [own_value(from_csv(cell)) if cell else None for cell in cells[name]] for name in own}
        table = table.assign(**{name: pd.Series(each, dtype=object).infer_objects() for name, each in values.items()})
    return table


def check_whole(path: Path) -> None:
    """Check a table of a scenario against the index of its tables, where that lists it.

    Raises `UserError` if it was cut or altered.
    """
    index = path.parent / SCENARIO_INDEX
    if index.is_file():
        files = files_in(read_object(index), index)
        check_unchanged(path, files, "since it was made; delete it to have it made again")


class ScenarioTables:
    """The tables of one scenario, in its folder `results/scenarios/<scenario>/`: CSV, and Parquet for `SCHEMAS`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._tables: dict[str, pd.DataFrame] = {}

    @cached_property
    def measures(self) -> pd.DataFrame:
        """One row per run: outcome, parameters and measures; of runs that had all parts of their step.

        Raises `UserError` if they are not there.
        """
        return self.every[~self._is_ablated].reset_index(drop=True)

    @cached_property
    def ablated(self) -> pd.DataFrame:
        """The same of those that went without a part, which trained nothing."""
        return self.every[self._is_ablated].reset_index(drop=True)

    @cached_property
    def every(self) -> pd.DataFrame:
        """Both together."""
        path = self.folder / MEASURES
        if not path.is_file():
            raise UserError(f"{path}: not found; expected the folder of a scenario that was measured")
        return read_columns(path)

    @property
    def _is_ablated(self) -> pd.Series:
        return self.every.get("ablate", pd.Series("none", self.every.index)).fillna("none") != "none"

    @cached_property
    def completed(self) -> list[dict[Hashable, Any]]:
        """Rows of the measures, of the completed runs."""
        return self.measures[self.measures["outcome"] == "completed"].to_dict("records")

    @cached_property
    def reasons_not_run(self) -> list[str]:
        """Why runs of the scenario cannot run here, of each; none where the table of outcomes is not there."""
        if not (self.folder / OUTCOME_TABLE).is_file():
            return []
        return self.runs.loc[self.runs["outcome"] == NOT_RUN, "reason"].tolist()

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run: its `outcome` and the `reason` for it; those that were not run, too.

        Raises `UserError` if the table is not there, or was cut or altered.
        """
        return read_checked(self.folder / OUTCOME_TABLE)

    def table(self, name: str) -> pd.DataFrame:
        """Rows of one table of all completed runs with `measures`, `run` in the first column; `runs_info` of all.

        Where nothing was recorded there are columns without rows.

        Raises `KeyError` if no table has that name. Raises `UserError` if its file cannot be read, or has no such
        column.
        """
        if name not in self._tables:
            table = _read(self.folder / f"{name}.parquet", SCHEMAS[name])
            if name != "runs_info" and (self.folder / MEASURES).is_file() and len(self.ablated):
                table = table[~table["run"].isin(self.ablated["run"])]
            self._tables[name] = table
        return self._tables[name]

    def with_values(self, values: pd.DataFrame) -> pd.DataFrame:
        """The measures with further columns: `values` has a row per run, named by its index."""
        return self.measures.merge(values, how="left", left_on="run", right_index=True)


def tables_of(run: Path | RunFiles) -> dict[str, pa.Table]:
    """Tables of one run, by name, `run` in the first column; none of a run that did not complete.

    Raises `UserError` if a file of the run is missing or damaged.
    """
    run = RunFiles.of(run)
    record = run.record
    if not record.completed:
        return {}
    found = {name: run.activity(name, SCHEMAS[name].names) for name in GATHERED_ACTIVITIES}
    for name, wanted in (("steps", STEP_COLUMNS), ("epochs", EPOCH_COLUMNS)):
        table = run.table(f"{name}.csv", ()).reindex(columns=wanted)  # earlier versions had fewer
        found[name] = pa.Table.from_pandas(table, SCHEMAS[name], preserve_index=False)
    found["runs_info"] = pa.Table.from_pylist([_info(run)], SCHEMAS["runs_info"])
    named = {}
    for name, table in found.items():
        ids = pa.array([record.run] * table.num_rows, pa.string())
        own = table.replace_schema_metadata(None).select(SCHEMAS[name].names)
        named[name] = own.add_column(0, "run", ids)
    return named


def joined(parts: Iterable[dict[str, pa.Table]]) -> dict[str, pa.Table]:
    """Tables of several runs by name, by `tables_of`, joined."""
    every: dict[str, list[pa.Table]] = {name: [_with_run(schema).empty_table()] for name, schema in SCHEMAS.items()}
    for part in parts:
        for name, table in part.items():
            every[name].append(table)
    return {name: pa.concat_tables(tables) for name, tables in every.items()}


def store(tables: dict[str, pa.Table], folder: Path) -> None:
    """Write tables into a scenario's folder."""
    for name, table in tables.items():
        with atomic_write(folder / f"{name}.parquet") as temporary:
            pq.write_table(table, temporary)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, whole or not at all; `from_cells` gives its text back as it was."""
    with atomic_write(path) as temporary:
        _with_texts(table, for_csv).to_csv(temporary, index=False)


def from_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table that `write_csv` wrote, of its cells."""
    return _with_texts(table, from_csv)


def _with_texts(table: pd.DataFrame, function: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with a function of its texts; numbers stay what they are."""
    changed = {}
    for name, column in table.items():
        if pd.api.types.is_object_dtype(column) or isinstance(column.dtype, pd.StringDtype):
            changed[str(name)] = column.map(lambda cell: function(cell) if isinstance(cell, str) else cell)
    return table.assign(**changed)


def _info(run: RunFiles) -> dict[str, Any]:
    """Where a run took place, its variables as JSON, steps of its trace per process, and why it has none."""
    record, steps = run.record, run.traced_steps
    processes = len(steps[["report", "process"]].drop_duplicates())
    return {
        "machine": machine_in_words(record.hardware),
        "versions": versions_in_words(record),
        "variables": None if record.variables is None else json.dumps(record.variables),
        "traced_steps": len(steps) / processes if processes else None,
        "trace_missing": record.profiler.trace_missing,
    }


def _with_run(schema: pa.Schema) -> pa.Schema:
    return pa.schema([("run", pa.string()), *schema])


def _read(path: Path, schema: pa.Schema) -> pd.DataFrame:
    expected = _with_run(schema)
    if not path.exists():
        if (path.parent / SCENARIO_INDEX).exists():
            raise UserError(f"{path}: missing; delete {path.parent / MEASURES} to have the tables made again")
        return expected.empty_table().to_pandas()
    check_whole(path)
    return selected(read_parquet(path), expected.names, path).to_pandas()
