"""`multicard analyze` and `compare`: what any trace says, from this pipeline or from anybody's machine."""

import json
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from multicard.analysis.compare import compare
from multicard.errors import UserError
from multicard.files import whole
from multicard.launch import nsys
from multicard.record.names import CAPTURED, EXPORTED
from multicard.terminal import plain
from multicard.trace.extract import read_trace
from multicard.trace.model import Trace, joined
from multicard.trace.tables import ACTIVITIES, activity_tables

READABLE = (".sqlite", ".nsys-rep", ".json", ".json.gz")
LONGEST = 10  # rows of a table on the terminal
NAME_WIDTH = 90


def analyze(path: Path, out: Path | None, as_json: bool, console: Console) -> None:
    """Print a summary of a trace file, or of a folder with one file per node or rank; write its tables to `out`.

    Raises
    ------
    UserError
        If there is no trace, or one that cannot be read; nothing is written then.
    """
    trace = _read(path)
    tables = activity_tables(trace)
    absent = {name: trace.why_absent(activity.events) for name, activity in ACTIVITIES.items() if name not in tables}
    if out is not None:
        for name, table in tables.items():
            _write(out / name, table)
    if as_json:
        found = {name: json.loads(table.to_pandas().to_json(orient="records")) for name, table in tables.items()}
        print(json.dumps({"tables": found, "absent": absent}, indent=2))
    else:
        _summarize(tables, absent, console)


def compare_traces(a: Path, b: Path, console: Console) -> None:
    """Print what differs between two traces, largest difference first.

    Raises
    ------
    UserError
        If one of them cannot be read.
    """
    found, basis = compare(activity_tables(_read(a)), activity_tables(_read(b)))
    if found.empty:
        console.print("cannot tell: the two traces hold no table in common")
        return
    caption = (
        f"Seconds {basis}, mean over processes; durations that overlap add up. One capture each gives no interval: "
        "small differences may be chance."
    )
    console.print(_table(found, plain(f"a: {a}, b: {b}"), caption, longest=3 * LONGEST))


def _read(path: Path) -> Trace:
    try:
        with tempfile.TemporaryDirectory() as scratch:
            return joined([read_trace(_readable(file, Path(scratch))) for file in _traces(path)])
    except nsys.TraceError as error:
        raise UserError(str(error)) from error


def _traces(path: Path) -> list[Path]:
    """Trace files at a path. An exported report counts once, as its database."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(READABLE) and not file.name.startswith("."))
    databases = {file.stem for file in found if file.suffix == ".sqlite"}
    found = [file for file in found if file.suffix != ".nsys-rep" or file.stem not in databases]
    # The manifests that lie beside the traces of a run are no traces.
    found = [file for file in found if file.name not in (CAPTURED, EXPORTED)]
    if not found:
        raise UserError(f"{path}: no trace here, expected files named *{', *'.join(READABLE)}")
    return found


def _readable(file: Path, scratch: Path) -> Path:
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    if file.suffix != ".nsys-rep":
        return file
    database = scratch / f"{file.stem}.sqlite"
    nsys.export(file, database)
    return database


def _write(stem: Path, table: pa.Table) -> None:
    with whole(stem.with_name(f"{stem.name}.parquet")) as temporary:
        pq.write_table(table, temporary)
    with whole(stem.with_name(f"{stem.name}.csv")) as temporary:
        table.to_pandas().to_csv(temporary, index=False)


def _summarize(tables: dict[str, pa.Table], absent: dict[str, str], console: Console) -> None:
    for name, activity in ACTIVITIES.items():
        if name in absent:
            console.print(plain(f"{name}: cannot tell: {absent[name]}"), "\n")
            continue
        frame = tables[name].to_pandas()
        if name == "phases":
            frame = _phase_medians(frame)
        if frame.empty:
            console.print(plain(f"{name}: none"), "\n")
            continue
        more = f", first {LONGEST} of {len(frame)}" if len(frame) > LONGEST else ""
        console.print(_table(frame, plain(f"{name}{more}"), activity.says, LONGEST), "")


def _table(frame: pd.DataFrame, title: Text, caption: str, longest: int) -> Table:
    """Show the first rows of a frame, without the columns that are empty throughout."""
    shown = frame.dropna(axis="columns", how="all").head(longest)
    table = Table(title=title, caption=plain(caption), title_justify="left")
    for column in shown:
        table.add_column(plain(column), justify="right" if shown[column].dtype.kind in "fiu" else "left")
    for row in shown.itertuples(index=False):
        table.add_row(*(_cell(column, value) for column, value in zip(shown, row, strict=True)))
    return table


def _phase_medians(phases: pd.DataFrame) -> pd.DataFrame:
    """Median duration per process and phase, in the order of the phases."""
    by = ["rank", "process", "phase"]
    groups = phases.groupby(by, dropna=False, sort=False)["duration_s"]
    return groups.agg(times="count", median_s="median", total_s="sum").reset_index()


def _cell(column: str, value: object) -> Text:
    if pd.isna(value):
        return Text("")
    if column.endswith("_s"):
        return Text(f"{value:.6f}")
    if column == "ratio":
        return Text(f"{value:.3f}")
    return plain(str(value), NAME_WIDTH)
