"""Read and check the files of a run directory. The error of a damaged file is one line that names the file."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from multicard.config.read_run import read_run
from multicard.core.errors import UserError
from multicard.core.files import read_object
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, EPOCH_COLUMNS, EPOCHS, STEP_COLUMNS, STEPS
from multicard.core.prepared import is_unchanged
from multicard.core.tables import read_csv
from multicard.core.validation import first_fault
from multicard.runs.record import ListedFile, RunRecord
from multicard.trace.steps import DEVICE, HOST
from multicard.trace.tables import ACTIVITIES, STEP
from multicard.trace.tables import STEPS as IN_STEPS

# Columns that identify a process in the activity tables.
_PROCESS = ["report", "process", "rank"]
# Limits of a Parquet file. A file that exceeds one of them is refused, because a file of a few bytes can repeat one
# value in any number of rows.
# Number of rows that any file may have. A file may have more if it has at least one byte for each row: each row of a
# run's table has a measured time, which takes more than a byte.
FREE_ROWS = 100_000
MOST_COLUMNS = 200  # the widest table has about 40
# Bytes of all columns of text: for each column, its longest text times the number of rows.
MOST_TEXT = 1 << 28
# Bytes that any file may unpack to. A file may unpack to more if that is at most `MOST_TIMES` its own size.
FREE_BYTES, MOST_TIMES = 64 << 20, 200
# Columns of the tables that a job writes as CSV.
_COLUMNS = {STEPS: STEP_COLUMNS, EPOCHS: EPOCH_COLUMNS}
# Columns of CSV files with seconds that have to be above 0.
DURATIONS = ("duration_s", "epoch_time_s")


class _Index(BaseModel):
    """The list of files in an index. Other keys of the index are ignored."""

    model_config = ConfigDict(extra="ignore")

    files: tuple[ListedFile, ...] = ()


@dataclass(frozen=True)
class _ActivityIndex:
    """The index of a run's activity tables."""

    files: Sequence[ListedFile]
    # Lines about what the trace lacks, or what was corrected in it.
    notices: Sequence[str]
    # For each activity table that has an entry, the reason for which it does not exist; None if it exists.
    why_absent: Mapping[str, str | None]

    @classmethod
    def read(cls, path: Path) -> "_ActivityIndex":
        """Read an index. Raises `UserError` if the file is missing or damaged."""
        content = read_object(path)
        entries = content.get("tables")
        tables = entries.items() if isinstance(entries, dict) else ()
        reasons = {name: entry.get("absent") for name, entry in tables if isinstance(entry, dict)}
        return cls(files_in(content, path), content.get("notices", []), reasons)


class RunFiles:
    """The record, the job's tables and the activity tables of a run directory. Each file is read once, at first use."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._activities: dict[str, pa.Table] = {}
        self._tables: dict[str, pd.DataFrame] = {}

    @classmethod
    def of(cls, run: "Path | RunFiles") -> "RunFiles":
        """Return the files of a run directory; return `run` itself if it is a `RunFiles` already."""
        return cls(run) if isinstance(run, Path) else run

    @cached_property
    def record(self) -> RunRecord:
        """The record of the run.

        Raises `UserError` if it is missing or damaged.
        """
        return read_run(self.folder)

    def table(self, name: str, numbers: Iterable[str] = ()) -> pd.DataFrame:
        """Return steps.csv or epochs.csv, with all of its columns.

        `numbers`: columns that, except `window`, have to hold numbers. Those of `DURATIONS` have to be above 0 in each
        row.

        Raises `UserError` if the file is missing, was changed after the job wrote it, does not parse, lacks a column,
        or fails a check.
        """
        path = self.folder / name
        if name not in self._tables:
            self.check(name)
            self._tables[name] = read_csv(path, _COLUMNS[name])
        table = self._tables[name]
        for column in numbers:
            values = table[column]
            if column != "window" and len(table) and not pd.api.types.is_numeric_dtype(values):
                raise UserError(f"{path}: found text in the column {column}, expected numbers")
            if column in DURATIONS and not (values > 0).all():
                found = values[~(values > 0)].iloc[0]
                raise UserError(f"{path}: found {found:g} in the column {column}, expected seconds above 0")
        return table

    def check(self, name: str) -> None:
        """Check a file by the size and checksum that are listed for it.

        Activity tables are listed in the index of the activity folder, all other files in the record. A file that is
        missing or not listed passes: the files of an archive are listed in its manifest instead.

        `name`: path of the file in the run directory. Raises `UserError` if the file was cut or altered.
        """
        path = self.folder / name
        if path.parent != self._index_path.parent:
            made = f"since the run wrote it; delete {self.folder} to run it again"
            check_unchanged(path, self.record.files, made)
        else:
            made = f"since it was made; delete {self._index_path} to have it made again"
            check_unchanged(path, self._files_of_activity, made)

    def written(self) -> list[str]:
        """Return the names of all listed files: those that the job wrote, then the activity tables with their folder.

        Raises `UserError` if the index of the tables is damaged.
        """
        by_job = [file.name for file in self.record.files if file.name is not None]
        of_activity = [f"{ACTIVITY}/{file.name}" for file in self._files_of_activity]
        return [*by_job, *of_activity]

    @cached_property
    def _files_of_activity(self) -> Sequence[ListedFile]:
        return self._index.files if self._index_path.exists() else ()

    def trace_notices(self) -> Sequence[str]:
        """Return lines about what the trace lacks or what was corrected in it; empty if no trace was read.

        Raises `UserError` if the index of the tables is damaged.
        """
        return self._index.notices if self._index_path.exists() else ()

    def why_absent(self, activity: str) -> str | None:
        """Return the reason for which an activity table does not exist, from the index; None if the table exists.

        Raises `UserError` if the index is missing or damaged.
        """
        reasons = self._index.why_absent
        if activity not in reasons:
            raise UserError(f"{self._index_path}: found no entry of {activity}; delete the file to have it made again")
        return reasons[activity]

    @property
    def _index_path(self) -> Path:
        return self.folder / ACTIVITY / ACTIVITY_INDEX

    @cached_property
    def _index(self) -> "_ActivityIndex":
        """The content of the index of the activity tables.

        Raises `UserError` if the index is missing or damaged.
        """
        return _ActivityIndex.read(self._index_path)

    def has_activity(self, name: str) -> bool:
        """Return True if the file of an activity table exists."""
        return self._path(name).exists()

    def activity(self, name: str, columns: list[str]) -> pa.Table:
        """Return some columns of an activity table.

        Raises `UserError` if the file is missing, was cut or altered, cannot be read, or lacks a column of its schema.
        """
        if name not in self._activities:
            self.check(f"{ACTIVITY}/{name}.parquet")
            path = self._path(name)
            self._activities[name] = selected(read_parquet(path), ACTIVITIES[name].schema.names, path)
        return self._activities[name].select(columns)

    @cached_property
    def traced_steps(self) -> pd.DataFrame:
        """Return the steps of each process as the trace shows them.

        Columns: `report`, `process`, `rank`, `step`, and in seconds `start_s` and `duration_s`.

        If enough launches were recorded, a step lasts from its start on the GPU to its end on the GPU, as CUDA events
        time it for the record; the times are means over the devices of the process. Otherwise it is a range on the
        host. Such a range ends when the last kernel is launched, which may be long before the kernel runs. Starts count
        from the first step of the report, and only starts of the same process can be compared.

        Raises `UserError` if the table `phases` is missing or damaged.
        """
        on_host = self._steps_on_host()
        if not self.has_activity("timeline"):
            return on_host
        on_devices = self._steps_on_devices()
        processes_with_devices = set(_processes(on_devices))
        is_only_on_host = [process not in processes_with_devices for process in _processes(on_host)]
        return pd.concat((on_devices, on_host[is_only_on_host]), ignore_index=True)

    def _steps_on_host(self) -> pd.DataFrame:
        """Return the steps of each process as ranges on the host, with the columns of `traced_steps`."""
        phases = self.activity("phases", [*_PROCESS, "step", "phase", "start_s", "duration_s"])
        steps = phases.filter(pc.field("phase") == STEP)
        return steps.drop_columns("phase").to_pandas()

    def _steps_on_devices(self) -> pd.DataFrame:
        """Return the steps that are timed on devices, with the columns of `traced_steps`.

        Times are means over the devices of a process.
        """
        timeline = self.activity("timeline", [*_PROCESS, "step", "scope", "extent", "start_s", "span_s"])
        is_step = pc.field("scope") == STEP
        is_timed_on_device = pc.field("extent") == DEVICE
        steps_of_devices = timeline.filter(is_step & is_timed_on_device)
        by_process = steps_of_devices.group_by([*_PROCESS, "step"], use_threads=False)
        steps = by_process.aggregate([("start_s", "mean"), ("span_s", "mean")]).to_pandas()
        return steps.rename(columns={"start_s_mean": "start_s", "span_s_mean": "duration_s"})

    @property
    def has_host_extents(self) -> bool | None:
        """True if the steps of any device are ranges on the host because too few launches were recorded.

        None if the trace shows no steps of a device.
        """
        if not self.has_activity("timeline"):
            return None
        rows = self.activity("timeline", ["scope", "extent"])
        extents = rows.filter(pc.field("scope") == IN_STEPS)["extent"]
        if len(extents) == 0:
            return None
        is_on_host = pc.equal(extents, HOST)
        return pc.any(is_on_host).as_py() is True

    def _path(self, activity: str) -> Path:
        return self.folder / ACTIVITY / f"{activity}.parquet"


def _processes(steps: pd.DataFrame) -> Iterable[tuple[Any, Any]]:
    """Return the report and the process of each step. Processes of different reports may have the same number."""
    return zip(steps["report"], steps["process"], strict=True)


def read_parquet(path: Path) -> pa.Table:
    """Read a Parquet file.

    Raises `UserError` if it is missing or damaged, or if it exceeds one of the limits above.
    """
    try:
        with pq.ParquetFile(path) as file:
            _refuse_growth(path, file.metadata)
            texts = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
        # Texts are read as codes first, so that a long text in all rows takes memory once. Their length is checked
        # before they are expanded.
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            # Threads do not pay: the files are many and small.
            table = file.read(use_threads=False)
        return _decoded(path, table, texts)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {str(error).splitlines()[0]}") from None


def _refuse_growth(path: Path, footer: pq.FileMetaData) -> None:
    """Raise `UserError` if a file unpacks to too many bytes, or has too many rows or columns; see the limits above."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    unpacked_size = sum(group.total_byte_size for group in groups)
    size = path.stat().st_size
    if unpacked_size > max(FREE_BYTES, MOST_TIMES * size):
        raise UserError(f"{path}: unpacks to more than {MOST_TIMES} times its size")
    if rows > max(FREE_ROWS, size):
        raise UserError(f"{path}: holds {rows} rows in {size} bytes, which no table of measurements does")
    if footer.num_columns > MOST_COLUMNS:
        raise UserError(f"{path}: found {footer.num_columns} columns, expected at most {MOST_COLUMNS}")


def _decoded(path: Path, table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table in which the columns `names`, which hold texts as codes, are columns of text.

    Raises `UserError` if the texts might take more than `MOST_TEXT` bytes.
    """
    total = 0
    for name in names:
        column = table[name]
        longest = max((_longest_text(part.dictionary) for part in column.chunks), default=0)
        total += longest * len(column)
        if total > MOST_TEXT:
            raise UserError(f"{path}: {len(column)} rows have texts of {longest} bytes in the column {name}")
        index = table.column_names.index(name)
        table = table.set_column(index, pa.field(name, pa.string()), column.cast(pa.string()))
    return table


def _longest_text(texts: pa.Array) -> int:
    """Return the number of bytes of the longest text; 0 without texts."""
    lengths = pc.binary_length(texts)
    return pc.max(lengths).as_py() or 0


def selected(table: pa.Table, columns: Sequence[str], path: Path) -> pa.Table:
    """Return some columns of a table that was read from `path`. Raises `UserError` if the table lacks one."""
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: found no column {missing[0]}")
    return table.select(columns)


def files_in(content: Mapping[str, Any], path: Path) -> Sequence[ListedFile]:
    """Return the files that an index lists under `files`; empty without that key.

    `content`: the parsed content of `path`.

    Raises `UserError` if the list is damaged.
    """
    try:
        return _Index.model_validate_json(json.dumps(content)).files
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}; delete the file to have it made again") from None


def check_unchanged(path: Path, files: Iterable[ListedFile], made: str) -> None:
    """Raise `UserError` if the file `path` exists, is one of the listed `files`, and differs in size or checksum.

    `made`: the end of the message, which states when the file was made and how to make it again.
    """
    entry = next((file for file in files if file.name == path.name), None)
    if entry is None or not path.exists():
        return
    if not is_unchanged(path, entry.bytes, entry.sha256):
        raise UserError(f"{path}: cut or altered {made}")
