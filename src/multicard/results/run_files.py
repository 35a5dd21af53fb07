"""The files of a run directory, read so that a damaged one is named in one line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from multicard.core.errors import UserError
from multicard.core.files import read_object
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX
from multicard.core.prepared import is_unchanged
from multicard.core.tables import read_csv
from multicard.core.validation import first_fault
from multicard.experiment.read_run import read_run
from multicard.runs.record import ListedFile, RunRecord
from multicard.trace.steps import DEVICE, HOST
from multicard.trace.tables import ACTIVITIES, STEP, STEPS

_PLACE = ["report", "process", "rank"]
# A Parquet file that repeats one value holds any number of rows in a few bytes. Every row of a table of a run has a
# time that was measured, which takes more than a byte, so a larger table than this has no more rows than bytes.
FREE_ROWS = 100_000
MOST_COLUMNS = 200  # the widest table has some 40
MOST_TEXT = 1 << 28  # bytes of a file's texts, each row's counted
FREE_BYTES, MOST_TIMES = 64 << 20, 200  # what a file may unpack to at least, and how many times its size
DURATIONS = ("duration_s", "epoch_time_s")


class _Index(BaseModel):
    """The form of a list of files, each with its checksum; an index has more than that."""

    model_config = ConfigDict(extra="ignore")

    files: tuple[ListedFile, ...] = ()


class RunFiles:
    """The record and the activity tables of a run directory, each read once, when it is first asked for."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._activities: dict[str, pa.Table] = {}
        self._tables: dict[str, pd.DataFrame] = {}

    @classmethod
    def of(cls, run: "Path | RunFiles") -> "RunFiles":
        """The files of a run directory, or these themselves."""
        return cls(run) if isinstance(run, Path) else run

    @cached_property
    def record(self) -> RunRecord:
        """The record of the run.

        Raises `UserError` if it is missing or damaged.
        """
        return read_run(self.folder)

    def table(self, name: str, columns: Iterable[str]) -> pd.DataFrame:
        """A table that the job wrote as CSV, which must have the columns; all but `window` are numbers.

        Raises `UserError` if it is not there or not the one that the job wrote, does not parse, or has no such column,
        or text or an impossible duration in it.
        """
        path = self.folder / name
        if name not in self._tables:
            self.check(name)
            self._tables[name] = read_csv(path)
        table = self._tables[name]
        for column in columns:
            if column not in table:
                raise UserError(f"{path}: found no column {column}")
            values = table[column]
            if column != "window" and len(table) and not pd.api.types.is_numeric_dtype(values):
                raise UserError(f"{path}: found text in the column {column}, expected numbers")
            if column in DURATIONS and not (values > 0).all():
                found = values[~(values > 0)].iloc[0]
                raise UserError(f"{path}: found {found:g} in the column {column}, expected seconds above 0")
        return table

    def check(self, name: str) -> None:
        """Check a file that the job wrote, or a table of its activity, by the checksum in the record or in the index.

        A file that is listed nowhere is not checked: archives list theirs in the manifest.

        Raises `UserError` if it was cut or altered.
        """
        path = self.folder / name
        if path.parent != self._index_path.parent:
            made = f"since the run wrote it; delete {self.folder} to run it again"
            check_unchanged(path, self.record.files, made)
        else:
            made = f"since it was made; delete {self._index_path} to have it made again"
            check_unchanged(path, self._files_of_activity, made)

    def written(self) -> list[str]:
        """Return the names of files with a checksum: of those that the job wrote, and of the tables of its activity.

        Raises `UserError` if the index of the tables is damaged.
        """
        by_job = [file.name for file in self.record.files if file.name is not None]
        of_activity = [f"{ACTIVITY}/{file.name}" for file in self._files_of_activity]
        return [*by_job, *of_activity]

    @cached_property
    def _files_of_activity(self) -> Sequence[ListedFile]:
        return files_in(self._index, self._index_path) if self._index_path.exists() else ()

    def trace_notices(self) -> list[str]:
        """Lines on what the trace lacks, or what was set right in it; none where it was not read.

        Raises `UserError` if the index of the tables is damaged.
        """
        return self._index.get("notices", []) if self._index_path.exists() else []

    def why_absent(self, activity: str) -> str | None:
        """Why there is no activity table, by the index of the tables; None where there is one.

        Raises `UserError` if the index is damaged.
        """
        tables = self._index.get("tables")
        if not isinstance(tables, dict) or not isinstance(tables.get(activity), dict):
            raise UserError(f"{self._index_path}: found no entry of {activity}; delete the file to have it made again")
        return tables[activity].get("absent")

    @property
    def _index_path(self) -> Path:
        return self.folder / ACTIVITY / ACTIVITY_INDEX

    @cached_property
    def _index(self) -> dict[str, Any]:
        """The index of the activity tables.

        Raises `UserError` if it is not there, or does not parse.
        """
        return read_object(self._index_path)

    def has_activity(self, name: str) -> bool:
        """Whether there is an activity table of that name."""
        return self._path(name).exists()

    def activity(self, name: str, columns: list[str]) -> pa.Table:
        """Columns of an activity table; those that multicard did not have when it was made are empty.

        Raises `UserError` if it is not there, was cut or altered, cannot be read or has no such column.
        """
        if name not in self._activities:
            self.check(f"{ACTIVITY}/{name}.parquet")
            self._activities[name] = _completed(read_parquet(self._path(name)), ACTIVITIES[name].schema)
        return selected(self._activities[name], columns, self._path(name))

    @cached_property
    def traced_steps(self) -> pd.DataFrame:
        """Steps as the trace shows them: by each device where the launches tell, else by the host's ranges.

        Columns `report`, `process`, `rank`, `step`, `start_s`, `duration_s`; of several devices of a process the mean.
        On a GPU these are the extents of steps on the device, which the record's CUDA events time, too; a range on the
        host ends when the last kernel is launched, which may be long before it runs. Starts count from the first step
        of the report, and are to be compared within a process.
        """
        times = ["start_s", "duration_s"]
        phases = self.activity("phases", [*_PLACE, "step", "phase", *times])
        host = phases.filter(pc.field("phase") == STEP).drop_columns("phase").to_pandas()
        if not self.has_activity("timeline"):
            return host
        rows = self.activity("timeline", [*_PLACE, "step", "scope", "extent", "start_s", "span_s"])
        of_devices = (pc.field("scope") == STEP) & (pc.field("extent") == DEVICE)
        rows = rows.filter(of_devices).group_by([*_PLACE, "step"], use_threads=False)
        device = rows.aggregate([("start_s", "mean"), ("span_s", "mean")]).to_pandas()
        device = device.rename(columns={"start_s_mean": "start_s", "span_s_mean": "duration_s"})
        told = set(zip(device["report"], device["process"], strict=True))
        untold = [owner not in told for owner in zip(host["report"], host["process"], strict=True)]
        return pd.concat((device, host[untold]), ignore_index=True)

    @property
    def has_host_extents(self) -> bool | None:
        """Whether steps of a device are those of the host, as too few launches were recorded; None without such."""
        if not self.has_activity("timeline"):
            return None
        rows = self.activity("timeline", ["scope", "extent"])
        extents = rows.filter(pc.field("scope") == STEPS)["extent"]
        return None if len(extents) == 0 else pc.any(pc.equal(extents, HOST)).as_py() is True

    def _path(self, activity: str) -> Path:
        return self.folder / ACTIVITY / f"{activity}.parquet"


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file.

    Raises `UserError` if it is not there or damaged, or would grow by more than a table that was measured.
    """
    try:
        with pq.ParquetFile(path) as file:
            _refuse_growth(path, file.metadata)
            texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        # As codes, so that a long text which all rows have is there once.
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(use_threads=False)  # of small files, of which there are many
        return _decoded(path, table, texts)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {str(error).splitlines()[0]}") from None


def _refuse_growth(path: Path, footer: pq.FileMetaData) -> None:
    """Raise `UserError` if a file has more rows or columns than a table of that size can have."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    rows, size = sum(group.num_rows for group in groups), path.stat().st_size
    if sum(group.total_byte_size for group in groups) > max(FREE_BYTES, MOST_TIMES * size):
        raise UserError(f"{path}: unpacks to more than {MOST_TIMES} times its size")
    if rows > max(FREE_ROWS, size):
        raise UserError(f"{path}: holds {rows} rows in {size} bytes, which no table of measurements does")
    if footer.num_columns > MOST_COLUMNS:
        raise UserError(f"{path}: found {footer.num_columns} columns, expected at most {MOST_COLUMNS}")


def _decoded(path: Path, table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table whose columns of codes are columns of text.

    Raises `UserError` if that would take more than `MOST_TEXT`.
    """
    total = 0
    for name in names:
        column = table[name]
        longest = max((pc.max(pc.binary_length(part.dictionary)).as_py() or 0 for part in column.chunks), default=0)
        total += longest * len(column)
        if total > MOST_TEXT:
            raise UserError(f"{path}: {len(column)} rows have texts of {longest} bytes in the column {name}")
        place = table.column_names.index(name)
        table = table.set_column(place, pa.field(name, pa.string()), column.cast(pa.string()))
    return table


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with all columns of a schema: earlier versions of multicard wrote fewer."""
    for column in schema:
        if column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(table.num_rows, column.type))
    return table


def selected(table: pa.Table, columns: Sequence[str], path: Path) -> pa.Table:
    """Columns of a table that was read from `path`; a `UserError` if it has no such column."""
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: found no column {missing[0]}")
    return table.select(columns)


def files_in(content: Mapping[str, Any], path: Path) -> Sequence[ListedFile]:
    """Return the files that an index or a record lists with their checksums; `content` is what `path` holds.

    Raises `UserError` if the list is damaged.
    """
    try:
        return _Index.model_validate_json(json.dumps(content)).files
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}; delete the file to have it made again") from None


def check_unchanged(path: Path, files: Iterable[ListedFile], made: str) -> None:
    """Refuse a file that is listed with its size and checksum, and was cut or altered since it was `made`."""
    entry = next((file for file in files if file.name == path.name), None)
    if entry and path.exists() and not is_unchanged(path, entry.model_dump(exclude_none=True)):
        raise UserError(f"{path}: cut or altered {made}")
