"""The tables of a scenario, in its folder `results/scenarios/<scenario>/`: their form, and the one reader of them.

CSV: `measures.csv` (a row per run: outcome, parameters, measures) and `runs.csv` (a row per planned run: its outcome).
Parquet: a table for each name in `SCHEMAS`, gathered from the completed runs. `gathering` writes them; `Results` is
what questions are asked of.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from multicard.core.errors import UserError
from multicard.core.files import atomic_write, read_object
from multicard.core.layout import EPOCH_COLUMNS, GATHERED_ACTIVITIES, NOT_RUN, SCENARIO_INDEX, STEP_COLUMNS
from multicard.core.text import for_csv, from_csv, quoted
from multicard.experiment.workload import WORKLOADS
from multicard.results import provenance
from multicard.results.run_files import check_unchanged, files_in, read_csv, read_parquet, selected
from multicard.runs.parameter_types import own_value
from multicard.runs.parameters import ARGS_PREFIX
from multicard.trace.tables import ACTIVITIES

MEASURES = "measures.csv"
OUTCOME_TABLE = "runs.csv"
RUNS_INFO = "runs_info"

_INTEGERS = ("rank", "epoch", "step")
_TEXTS = ("window", "variables", "trace_missing")


def _recorded(columns: Iterable[str]) -> pa.Schema:
    """Return the columns of a table that is not of activities."""
    types = dict.fromkeys(_TEXTS, pa.string()) | dict.fromkeys(_INTEGERS, pa.int64())
    return pa.schema([(name, types.get(name, pa.float64())) for name in columns])


# Columns of each table, without `run`, which comes first in all of them. Of `runs_info` there is a row for each run
# that has a record, whether it completed or not.
SCHEMAS: dict[str, pa.Schema] = {
    **{name: ACTIVITIES[name].schema for name in GATHERED_ACTIVITIES},
    "steps": _recorded(STEP_COLUMNS),
    "epochs": _recorded(EPOCH_COLUMNS),
    RUNS_INFO: pa.schema([*provenance.SCHEMA, *_recorded(("variables", "traced_steps", "trace_missing"))]),
}


def with_run(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the column `run` in the first place."""
    return pa.schema([("run", pa.string()), *schema])


class ScenarioTables:
    """The tables of one scenario, each read and checked when it is first asked for.

    Whatever is missing, cut, altered or not such a table raises `UserError`, one line with the file.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._tables: dict[str, pd.DataFrame] = {}

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return self.folder.name

    @cached_property
    def measures(self) -> pd.DataFrame:
        """One row per run with a record: its outcome, parameters and measures."""
        path = self.folder / MEASURES
        if not path.is_file():
            raise UserError(f"{path}: not found; expected the folder of a scenario that was measured")
        table = read_measures(path)
        for workload in table["workload"].unique():
            if workload not in WORKLOADS:
                raise UserError(
                    f"{path}: found the workload {quoted(workload)}, expected one of {', '.join(WORKLOADS)}"
                )
        return table

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """One row per planned run: its `outcome` and the `reason` for it; of those that were not run, too."""
        return read_checked(self.folder / OUTCOME_TABLE, needed=("run", "outcome", "reason"))

    @property
    def reasons_not_run(self) -> list[str]:
        """For each run that cannot run here why; none where the table of outcomes is not there."""
        if not (self.folder / OUTCOME_TABLE).is_file():
            return []
        return self.outcomes.loc[self.outcomes["outcome"] == NOT_RUN, "reason"].tolist()

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of a gathered table, `run` in the first column; none where nothing was recorded.

        Raises `KeyError` if no table has that name.
        """
        if name not in self._tables:
            self._tables[name] = _read(self.folder / f"{name}.parquet", SCHEMAS[name]).to_pandas()
        return self._tables[name]

    @cached_property
    def provenances(self) -> dict[str, provenance.Provenance]:
        """Where, with what and on which data each run was made that has a record."""
        rows = _read(self.folder / f"{RUNS_INFO}.parquet", SCHEMAS[RUNS_INFO]).to_pylist()
        return {row["run"]: provenance.from_cells(row) for row in rows}


def read_measures(path: Path) -> pd.DataFrame:
    """Read the measures of a scenario. Of a user's own parameters only an empty cell is empty, not "None".

    Raises `UserError` as `read_checked`.
    """
    table = read_checked(path, needed=("run", "outcome", "workload"))
    users_own = [name for name in table if name.startswith(ARGS_PREFIX)]
    if not users_own:
        return table
    cells = read_csv(path, usecols=users_own, dtype=str, keep_default_na=False)
    typed = {}
    for name in users_own:
        values = [own_value(from_csv(cell)) if cell else None for cell in cells[name]]
        typed[name] = pd.Series(values, dtype=object).infer_objects()
    return table.assign(**typed)


def read_checked(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV file of a scenario, or of all scenarios, with options of `core.tables.read_csv`.

    Raises `UserError` if it is not there, was cut or altered, does not parse, or lacks a needed column.
    """
    _check_whole(path)
    return from_cells(read_csv(path, **options))


def _check_whole(path: Path) -> None:
    """Raise `UserError` if a table of a scenario was cut or altered, where the index of its tables lists it."""
    index = path.parent / SCENARIO_INDEX
    if index.is_file():
        files = files_in(read_object(index), index)
        check_unchanged(path, files, "since it was made; delete it to have it made again")


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    expected = with_run(schema)
    if not path.exists():
        if (path.parent / SCENARIO_INDEX).exists():
            raise UserError(f"{path}: missing; delete {path.parent / MEASURES} to have the tables made again")
        return expected.empty_table()
    _check_whole(path)
    return selected(read_parquet(path), expected.names, path)


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


def known_values(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row of a table as Python values, without empty cells.

    >>> known_values({"devices": 2.0, "packed": "True", "loss": math.nan, "reason": None})
    {'devices': 2, 'packed': True}
    """
    values = {str(name): _value(cell) for name, cell in row.items()}
    return {name: value for name, value in values.items() if value is not None}


def _value(cell: Any) -> Any:
    """Return a cell as a Python value, whatever the other cells of its column made of it; None of an empty one."""
    if pd.isna(cell):
        return None
    value = cell.item() if hasattr(cell, "item") else cell
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return {"True": True, "False": False}.get(value, value)
    return value
