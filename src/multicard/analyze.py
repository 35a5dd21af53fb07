"""`multicard analyze` and `compare`: what any trace says, from this pipeline or from anybody's machine."""

import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from multicard.analysis.trace_comparison import COLUMNS, compare_captures
from multicard.core.errors import TraceError, UserError
from multicard.core.files import atomic_write, unwritable
from multicard.core.layout import CAPTURED, EXPORTED
from multicard.core.terminal import plain, quantity
from multicard.profilers import PROFILERS
from multicard.trace.extract import open_trace
from multicard.trace.tables import ACTIVITIES, ActivityTables, activity_tables, events_to_read

READABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable + profiler.readable)
LONGEST = 10  # rows of a table on the terminal
NAME_WIDTH = 70
LONG_WORK = 2_000_000  # events from which on a progress bar is worth its lines

# What a reader wants to know first comes first; the others are in the files.
SUMMARY = (
    "timeline", "shares", "phases", "kernel_classes", "kernels", "collectives", "stragglers", "launches",
    "memory_operations", "memory_use", "cuda_api", "synchronizations", "ranges", "metrics",
)  # fmt: skip

Rows = list[dict[str, Any]]


def analyze(path: Path, out: Path | None, as_json: bool, only: Collection[str] | None, console: Console) -> None:
    """Print a summary of a trace file, or of a folder with one file per node or rank; write its tables to `out`.

    Raises
    ------
    UserError
        If there is no trace, or one that cannot be read; nothing is written then.
    """
    unknown = sorted(set(only or ()) - set(ACTIVITIES))
    if unknown:
        raise UserError(f"--only: no table {unknown[0]}, expected some of {', '.join(ACTIVITIES)}")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out: {out} is a file, expected a folder")
    obstacle = unwritable(out) if out is not None else None
    if obstacle:
        raise UserError(f"--out: cannot write to {out}: {obstacle}")
    found = _read(path, only)
    if out is not None:
        for name in found.rows:
            _write(out / name, found, name)
        _draw(out, found, console)
    if as_json:
        print(json.dumps({"tables": found.rows, "absent": found.absent}, indent=2))
    else:
        _summarize(found, console)


def compare_traces(a: Path, b: Path, console: Console) -> None:
    """Print what differs between two traces, largest difference first.

    Raises
    ------
    UserError
        If one of them cannot be read.
    """
    rows, basis = compare_captures(_read(a), _read(b))
    if not rows:
        console.print("cannot tell: the two traces hold no table in common")
        return
    caption = (
        f"Time {basis}, mean over processes; durations that overlap add up. One capture each gives no interval: "
        "small differences may be chance."
    )
    console.print(_table(rows, COLUMNS, plain(f"a: {a}, b: {b}"), caption, longest=3 * LONGEST))


def _read(path: Path, only: Collection[str] | None = None) -> ActivityTables:
    try:
        with tempfile.TemporaryDirectory() as scratch:
            traces = [open_trace(_readable(file, Path(scratch))) for file in _traces(path)]
            with _progress(events_to_read(traces, only)) as progress:
                return activity_tables(traces, only, progress)
    except TraceError as error:
        raise UserError(str(error)) from error


@contextmanager
def _progress(events: int) -> Iterator[Callable[[int], None] | None]:
    """Show a bar while much is read, if somebody looks."""
    if events < LONG_WORK or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=events)
        yield lambda read: bar.advance(task, read)


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
    for profiler in PROFILERS.values():
        if file.name.endswith(profiler.exportable):
            return profiler.export(file, scratch)
    return file


def _write(stem: Path, found: ActivityTables, name: str) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    table = found.table(name)
    with atomic_write(stem.with_name(f"{stem.name}.parquet")) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    with atomic_write(stem.with_name(f"{stem.name}.csv")) as temporary:
        pyarrow.csv.write_csv(table, temporary)


def _draw(out: Path, found: ActivityTables, console: Console) -> None:
    """Draw where the time of each device goes, if the trace tells."""
    rows = found.rows.get("timeline", [])
    if all(row["busy_s"] is None for row in rows):
        return
    from multicard.figures.timeline import draw_timeline

    draw_timeline(rows, out / "timeline.png")
    console.print(plain(f"tables and timeline.png: {out}"), "")


def _summarize(found: ActivityTables, console: Console) -> None:
    for name in SUMMARY:
        if name in found.absent:
            console.print(plain(f"{name}: cannot tell: {found.absent[name]}"), "\n")
        elif name in found.rows:
            rows = _SHORTER.get(name, lambda rows: rows)(found.rows[name])
            if not rows:
                console.print(plain(f"{name}: none"), "\n")
                continue
            if len(rows) > LONGEST and "total_s" in rows[0]:
                rows = sorted(rows, key=lambda row: -row["total_s"])
            more = f", first {LONGEST} of {len(rows)}" if len(rows) > LONGEST else ""
            says = ACTIVITIES[name].description
            console.print(_table(rows, tuple(rows[0]), plain(f"{name}{more}"), says, LONGEST), "")


def _table(rows: Rows, columns: tuple[str, ...], title: Text, caption: str, longest: int) -> Table:
    """Show the first rows of a table, without the columns that are empty throughout, or name one report only."""
    several = len({row.get("report") for row in rows}) > 1
    rows = rows[:longest]
    shown = [
        column for column in columns if any(row[column] is not None for row in rows) and (column != "report" or several)
    ]
    table = Table(title=title, caption=plain(caption), title_justify="left", caption_justify="left")
    for column in shown:
        heading, _ = quantity(column, None)
        numbers = all(isinstance(row[column], int | float | None) for row in rows)
        table.add_column(plain(heading), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row[column]) for column in shown))
    return table


def _cell(column: str, value: Any) -> Text:
    return plain(quantity(column, value)[1], NAME_WIDTH)


def _phase_medians(rows: Rows) -> Rows:
    """Median duration per process and phase, in the order of the phases."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("report", "rank", "process", "phase"))
        groups.setdefault(key, []).append(row["duration_s"])
    return [
        dict(zip(("report", "rank", "process", "phase"), key, strict=True))
        | {"times": len(values), "median_s": median(values), "total_s": sum(values)}
        for key, values in groups.items()
    ]


def _capture_and_steps(rows: Rows) -> Rows:
    """The whole capture of each device, and the median over its steps."""
    shorter: Rows = []
    places = ("report", "rank", "process", "device")
    for key in dict.fromkeys(tuple(row[name] for name in places) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in places) == key]
        shorter += [row for row in own if row["scope"] == "capture"]
        steps = [row for row in own if row["scope"] == "step"]
        if steps:
            times = [name for name in steps[0] if name.endswith("_s")]
            medians = {n: median(row[n] for row in steps) if steps[0][n] is not None else None for n in times}
            shorter.append(steps[0] | medians | {"scope": f"median of {len(steps)} steps"})
    return [{name: value for name, value in row.items() if name != "step"} for row in shorter]


def _highest(rows: Rows) -> Rows:
    """The row with the most memory in use, per device and pool."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("report", "process", "device", "pool"))
        if key not in best or row["used_bytes"] > best[key]["used_bytes"]:
            best[key] = row
    return list(best.values())


_SHORTER: dict[str, Callable[[Rows], Rows]] = {
    "phases": _phase_medians,
    "timeline": _capture_and_steps,
    "memory_use": _highest,
}
