"""Trace files: which of them lie at a path, and how each is opened."""

import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from multicard.core.errors import TraceError, UserError
from multicard.core.layout import CAPTURED, EXPORTED
from multicard.core.text import listed
from multicard.profilers import PROFILERS, Profiler
from multicard.trace.model import Trace

EXPORTABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable)
READABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable + profiler.readable)

# How the file begins that stands for a large one in a clone without it (git-lfs, docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BEGINNING_BYTES = 4096


def open_capture(paths: Sequence[Path], scratch: Path, large: bool = False) -> list[Trace]:
    """Open the traces of one capture.

    `paths`: trace files, or folders of them, with one file per node or rank. A file that is named twice, and a report
    (.nsys-rep) whose database is there too, count once. `scratch`: where databases of reports are made; it must stay
    while the traces are read. `large`: whether a gzipped file may unpack to any size.

    Raises `UserError` if there is no trace. Raises `TraceError` if one is not there, or cannot be exported or opened.
    """
    files = {file.resolve(): file for path in paths for file in _trace_files(path)}
    databases = {file.with_suffix("") for file in files if file.suffix == ".sqlite"}
    chosen = [file for file in files if file.suffix not in EXPORTABLE or file.with_suffix("") not in databases]
    traces = [open_trace(files[file], scratch, large) for file in chosen]
    _tell_apart(traces, chosen)
    return traces


def _tell_apart(traces: Sequence[Trace], files: Sequence[Path]) -> None:
    """Give traces that have the same name those of their folders too, such as `rank0/trace` and `rank1/trace`."""
    times_used = Counter(trace.name for trace in traces)
    for trace, file in zip(traces, files, strict=True):
        if times_used[trace.name] > 1:
            trace.name = f"{file.parent.name}/{trace.name}"


def open_trace(path: Path, scratch: Path | None = None, large: bool = False) -> Trace:
    """Open one file by its format; a report only with a `scratch` folder, as `open_capture` has.

    The content tells the format, or if it does not, as that of a damaged file may not, the suffix.

    Raises `TraceError` if there is no such file, its format is not known, or it is damaged.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    beginning = _beginning(path)
    profiler, is_report = _format_of_content(beginning) or _format_of_name(path)
    if profiler and is_report and scratch:
        path, is_report = profiler.export(path, scratch), False
    if profiler is None or profiler.reader is None or is_report:
        expected = [suffix for each in PROFILERS.values() if each.reader for suffix in each.exportable + each.readable]
        table = "; a table of traces is read by --as-runs" if path.suffix == ".csv" else ""
        raise TraceError(f"{path}: cannot be read as a trace, expected {listed(expected, 'or')}{table}")
    reader = importlib.import_module(profiler.reader)
    return reader.read(path, large=large) if profiler.refuses_large else reader.read(path)


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises `TraceError` if there are none, or they are those of a file that only stands for the trace.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    if not beginning:
        raise TraceError(f"{path}: is empty")
    if beginning.startswith(_LFS_POINTER):
        raise TraceError(f"{path}: a Git LFS pointer, not the file itself: git lfs pull")
    return beginning


def _format_of_content(beginning: bytes) -> tuple[Profiler, bool] | None:
    """Return the profiler that writes such content, and whether it is a report to be exported; None if none does."""
    for profiler in PROFILERS.values():
        if beginning.startswith(profiler.exportable_beginnings):
            return profiler, True
        if beginning.lstrip().startswith(profiler.readable_beginnings):
            return profiler, False
    return None


def _format_of_name(path: Path) -> tuple[Profiler | None, bool]:
    profiler = profiler_of(path)
    return profiler, profiler is not None and path.name.endswith(profiler.exportable)


def profiler_of(path: Path) -> Profiler | None:
    """The profiler that leaves files of such a name."""
    return next((each for each in PROFILERS.values() if path.name.endswith(each.exportable + each.readable)), None)


def _trace_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(READABLE) and not file.name.startswith("."))
    # A run's own manifests are in the same folder as its traces.
    found = [file for file in found if file.name not in (CAPTURED, EXPORTED)]
    if not found:
        raise UserError(f"{path}: no trace files, expected names like *{', *'.join(READABLE)}")
    return found
