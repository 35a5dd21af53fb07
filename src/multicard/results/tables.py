"""The tables of a scenario in its folder `results/scenarios/<scenario>/`: their columns, and the one reader of them.

CSV files are `measures.csv` (a row per run with a record: outcome, parameters, measures) and `runs.csv` (a row per
planned run: outcome and reason); `answers.outputs` writes them. Parquet files are the gathered tables, one for each
name in `SCHEMAS`; `gathering` writes them. Analyses read the tables through `Results`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from multicard.core.errors import UserError
from multicard.core.files import atomic_write, read_object
from multicard.core.layout import EPOCH_COLUMNS, GATHERED_ACTIVITIES, NOT_RUN, SCENARIO_INDEX, STEP_COLUMNS
from multicard.core.text import for_csv, from_csv, quoted
from multicard.core.values import Cell, Row
from multicard.programs import PROGRAMS
from multicard.results import provenance
from multicard.results.run_files import check_unchanged, files_in, read_csv, read_parquet, selected
from multicard.runs.measures import COMMON
from multicard.runs.parameter_types import own_value
from multicard.runs.parameters import ARGS_PREFIX
from multicard.runs.record import ListedFile, TrainingSetup
from multicard.trace.tables import ACTIVITIES

MEASURES = "measures.csv"
OUTCOME_TABLE = "runs.csv"
# A row of a table without its empty cells, as `known_values` returns it.
KnownValues = Mapping[str, Any]
# Columns that every table of outcomes has.
OUTCOME_COLUMNS = ("run", "outcome", "reason")
RUNS_INFO = "runs_info"

# Types of the columns of gathered tables that are not activity tables. All others are floating-point numbers.
_INTEGERS = (
    "rank", "epoch", "step", "calls", "bytes", "steps", "samples_there", "stack_samples", "batch_size", "num_workers",
    "prefetch_factor", "batches_in_pass", "gradient_bytes", "buckets", "bucket_limit_bytes", "broadcast_bytes",
    "synchronized_norms", "parameters", "graph_breaks",
)  # fmt: skip
_TEXTS = (
    "window", "variables", "trace_missing", "kind", "function", "phase", "first_steps", "site", "called", "caller",
    "sampler", "backends", "wrapper", "debugging",
)  # fmt: skip
_BOOLEANS = (
    "persistent_workers", "pin_memory", "finds_unused", "has_unused", "loops_over_parameters", "can_fuse",
    "has_convolutions", "is_compiled",
)  # fmt: skip
# Columns of the tables `host_work`, `code_lines`, `loaders` and `training_setup`: see `HostWorkRecord`, `CodeLine`,
# `LoaderRecord` and `TrainingSetup` of `runs.record`.
HOST_WORK = ("rank", "kind", "function", "phase", "calls", "seconds", "bytes", "steps", "first_steps", "site")
CODE_LINES = ("rank", "phase", "site", "function", "called", "caller", "samples_there", "stack_samples")
LOADERS = (
    "rank", "kind", "sampler", "batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory",
    "batches_in_pass", "cpu_s",
)  # fmt: skip
TRAINING_SETUP = ("rank", *TrainingSetup.model_fields)


def _recorded(columns: Iterable[str]) -> pa.Schema:
    """Return the schema of a gathered table that is not an activity table."""
    types: dict[str, pa.DataType] = dict.fromkeys(_TEXTS, pa.string())
    types |= dict.fromkeys(_INTEGERS, pa.int64()) | dict.fromkeys(_BOOLEANS, pa.bool_())
    return pa.schema([(name, types.get(name, pa.float64())) for name in columns])


# The columns of each gathered table, without `run`, the first column of each. The tables have rows of completed runs;
# `runs_info` has a row for each run with a record, completed or not.
SCHEMAS: dict[str, pa.Schema] = {
    **{name: ACTIVITIES[name].schema for name in GATHERED_ACTIVITIES},
    "steps": _recorded(STEP_COLUMNS),
    "epochs": _recorded(EPOCH_COLUMNS),
    "host_work": _recorded(HOST_WORK),
    "code_lines": _recorded(CODE_LINES),
    "loaders": _recorded(LOADERS),
    "training_setup": _recorded(TRAINING_SETUP),
    RUNS_INFO: pa.schema([*provenance.SCHEMA, *_recorded(("variables", "traced_steps", "trace_missing"))]),
}


def with_run(schema: pa.Schema) -> pa.Schema:
    """Return a schema with `run` as a further column, the first one."""
    return pa.schema([("run", pa.string()), *schema])


class ScenarioTables:
    """The tables of one scenario. Each is read and checked at its first use.

    A table that is missing, cut or altered, or lacks a column, raises a `UserError` of one line with its file. Only
    measures may be lacking.
    """

    def __init__(self, folder: Path, looks: int | None = None):
        """Make the tables of a folder. `looks`: what is to be taken for `looks` if the index is yet to be written."""
        self.folder = folder
        self._looks = looks
        self._tables: dict[str, pd.DataFrame] = {}

    @property
    def name(self) -> str:
        """Name of the scenario."""
        return self.folder.name

    @cached_property
    def measures(self) -> pd.DataFrame:
        """One row per run with a record: its outcome, parameters and measures.

        A measure that a later version added is empty, so that measures of all versions from 1.0 on can be read.
        """
        path = self.folder / MEASURES
        if not path.is_file():
            raise UserError(f"{path}: not found; expected the folder of a scenario that was measured")
        table = read_measures(path)
        columns = dict.fromkeys((*table.columns, *COMMON))
        for workload in table["workload"].unique():
            if workload not in PROGRAMS:
                raise UserError(f"{path}: found the workload {quoted(workload)}, expected one of {', '.join(PROGRAMS)}")
            columns |= dict.fromkeys(PROGRAMS[workload].measures.definitions)
        return table.reindex(columns=list(columns))

    @cached_property
    def looks(self) -> int:
        """How often the results are looked at while blocks are added (`stats.looks`); 1 for a fixed number of blocks.

        Raises `UserError` if the index states no such number.
        """
        if self._looks is not None:
            return self._looks
        index = self.folder / SCENARIO_INDEX
        looks = read_object(index).get("looks", 1) if index.is_file() else 1
        if not isinstance(looks, int) or isinstance(looks, bool) or looks < 1:
            raise UserError(f"{index}: looks: found {quoted(looks)}, expected a whole number above 0")
        return looks

    @cached_property
    def outcomes(self) -> pd.DataFrame:
        """One row per planned run, whether it was made or not: its `outcome` and the `reason` for it."""
        return read_checked(self.folder / OUTCOME_TABLE, needed=OUTCOME_COLUMNS)

    @property
    def reasons_not_run(self) -> dict[str, str]:
        """For each planned run that cannot run here, the reason by its id.

        Empty if the table of outcomes does not exist.
        """
        if not (self.folder / OUTCOME_TABLE).is_file():
            return {}
        not_run = self.outcomes[self.outcomes["outcome"] == NOT_RUN]
        return dict(zip(not_run["run"], not_run["reason"], strict=True))

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of a gathered table, with `run` as the first column.

        There are no rows if nothing was recorded, or if no gathered table of this scenario was ever written.

        Raises `KeyError` if `name` is not in `SCHEMAS`.
        """
        if name not in self._tables:
            self._tables[name] = _read(self.folder / f"{name}.parquet", SCHEMAS[name]).to_pandas()
        return self._tables[name]

    @cached_property
    def provenances(self) -> dict[str, provenance.Provenance]:
        """The provenance of each run with a record, by the run's name."""
        rows = _read(self.folder / f"{RUNS_INFO}.parquet", SCHEMAS[RUNS_INFO]).to_pylist()
        return {row["run"]: provenance.from_cells(row) for row in rows}


def read_measures(path: Path) -> pd.DataFrame:
    """Read the measures of a scenario.

    In the columns of the user's own parameters only an empty cell is empty. A text such as "None" or "nan", which
    pandas takes for an empty cell, stays a text.

    Raises `UserError` as `read_checked` does.
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
    """Read a CSV file that `write_csv` wrote. `options`: those of `core.tables.read_csv`.

    Raises `UserError` if the file is missing, was cut or altered, does not parse, or lacks a needed column.
    """
    _check_whole(path)
    return from_cells(read_csv(path, **options))


def _check_whole(path: Path) -> None:
    """Raise `UserError` if the index beside a table lists another size or checksum for it.

    A table that is not listed, or has no index beside it, passes.
    """
    check_unchanged(path, _listed_beside(path), "since it was made; delete it to have it made again")


def _listed_beside(path: Path) -> Sequence[ListedFile]:
    """Return the files that the index beside a table lists; none if there is no index."""
    index = path.parent / SCENARIO_INDEX
    return files_in(read_object(index), index) if index.is_file() else ()


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a gathered table. A missing file is an empty table, unless the index shows that the table was written."""
    expected = with_run(schema)
    if not path.exists():
        if any(file.name == path.name for file in _listed_beside(path)):
            raise UserError(f"{path}: missing; delete {path.parent / MEASURES} to have the tables made again")
        return expected.empty_table()
    _check_whole(path)
    return selected(read_parquet(path), expected.names, path)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, either all of it or no file. Texts are escaped; `from_cells` restores them."""
    with atomic_write(path) as temporary:
        _with_texts(table, for_csv).to_csv(temporary, index=False)


def from_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table, read from a file of `write_csv`, with its texts as they were before they were escaped."""
    return _with_texts(table, from_csv)


def _with_texts(table: pd.DataFrame, function: Callable[[str], str]) -> pd.DataFrame:
    """Return a table with `function` applied to each text; other cells stay as they are."""
    changed = {}
    for name, column in table.items():
        if pd.api.types.is_object_dtype(column) or isinstance(column.dtype, pd.StringDtype):
            changed[str(name)] = column.map(lambda cell: function(cell) if isinstance(cell, str) else cell)
    return table.assign(**changed)


def known_values(row: Mapping[Any, Any]) -> Row:
    """Return a row of a table as Python values, without empty cells; see `_value`.

    >>> known_values({"devices": 2.0, "packed": "True", "loss": math.nan, "reason": None})
    {'devices': 2, 'packed': True}
    """
    values = {str(name): _value(cell) for name, cell in row.items()}
    return {name: value for name, value in values.items() if value is not None}


def _value(cell: Any) -> Cell:
    """Return a cell as a Python value; None if it is empty.

    pandas gives all cells of a column one type, so integers may have become floats, and booleans text. 2.0 is returned
    as 2, and "True" as True.
    """
    if pd.isna(cell):
        return None
    value = cell.item() if hasattr(cell, "item") else cell
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return {"True": True, "False": False}.get(value, value)
    return value
