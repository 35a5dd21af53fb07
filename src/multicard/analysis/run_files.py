"""The files of a run directory, read so that a damaged one is named in one line."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from multicard.core.errors import UserError
from multicard.core.files import read_json
from multicard.core.layout import OUTCOMES, RUN
from multicard.experiment.workload import WORKLOADS

Section = dict[str, Any] | None


class _Profiler(BaseModel):
    used: str
    trace_missing: str | None = None


class _Rank(BaseModel):
    rank: int
    node: str | None = None


class _Reason(BaseModel):
    model_config = ConfigDict(strict=True)

    code: str
    rank: int | None = None
    node: str | None = None
    signal: str | None = None
    time_limit_s: float | None = None
    unreported: list[_Rank] = []


class _Parameters(BaseModel):
    workload: Literal[tuple(WORKLOADS)]


class _Order(BaseModel):
    group: list[str]
    seed: int
    position: int


class _Record(BaseModel):
    """The form of run.json, as far as it is read here; None is what a job that ended early could not record."""

    run: str
    outcome: Literal[OUTCOMES]
    reason: _Reason | str | None = None
    parameters: _Parameters
    profiler: _Profiler
    order: _Order | None = None
    conditions: list[Section] = []
    host: Section = None
    hardware: Section = None
    versions: Section = None
    data: Section = None
    model: Section = None
    profiled_window: Section = None
    saved: Section = None
    ranks: list[dict[str, Any]] = []


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file with an object in it.

    Raises
    ------
    UserError
        If it is not there, does not parse, or holds anything else.
    """
    try:
        found = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: does not parse as JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}: found {type(found).__name__}, expected an object")
    return found


def read_record(folder: Path) -> dict[str, Any]:
    """Read run.json.

    Raises
    ------
    UserError
        If it is not there, does not parse, or is not a record.
    """
    path = folder / RUN
    record = read_object(path)
    try:
        _Record.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise UserError(f"{path}: not the record of a run: {f'{place}: ' if place else ''}{fault['msg']}") from None
    return record


def read_table(path: Path, columns: Iterable[str]) -> pd.DataFrame:
    """Read a table that a job wrote as CSV, which must have the columns; all but `window` are numbers.

    Raises
    ------
    UserError
        If it is not there, does not parse, or has no such column, or text in it.
    """
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, ValueError) as error:  # pandas' own errors are of the latter kind
        raise UserError(f"{path}: does not parse as CSV: {str(error).strip()}") from None
    for name in columns:
        if name not in table:
            raise UserError(f"{path}: found no column {name}")
        if name != "window" and len(table) and not pd.api.types.is_numeric_dtype(table[name]):
            raise UserError(f"{path}: found text in the column {name}, expected numbers")
    return table


def read_activity(path: Path, columns: list[str]) -> pa.Table:
    """Read columns of an activity table.

    Raises
    ------
    UserError
        If it is not there, cannot be read or has no such column.
    """
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in columns if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path}: found no column {missing[0]}")
            return file.read(columns)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {str(error).splitlines()[0]}") from None
