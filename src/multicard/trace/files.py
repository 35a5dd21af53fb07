"""Trace files: find them at a path, and open each by its format."""

import importlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.core.errors import TraceError, UserError
from multicard.core.layout import CAPTURED, EXPORTED
from multicard.core.text import listed
from multicard.profilers import PROFILERS, Profiler
from multicard.trace.model import Trace

# Suffixes of the names of files that must be exported before they can be read, and of all files that can be opened.
EXPORTABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable)
READABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable + profiler.readable)

# Where Git LFS did not download a large file of a repository, a small file stands in its place, which begins with these
# bytes (git-lfs, docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
# Number of bytes at the beginning of a file that are read to detect its format.
_BEGINNING_BYTES = 4096


@dataclass(frozen=True)
class _Format:
    """The format of a file: the profiler that writes it, and whether it is a report, which must be exported first."""

    profiler: Profiler
    is_report: bool


def open_capture(paths: Sequence[Path], scratch: Path, large: bool = False) -> list[Trace]:
    """Open the traces of one capture.

    `paths`: trace files, or folders of trace files, with one file per node or rank. A file that is named twice counts
    once. A report (.nsys-rep) is left out if its database (.sqlite), of the same name in the same folder, is given too.
    `scratch`: the folder for databases that are exported from reports; it must exist as long as the traces are read.
    `large`: if True, a gzipped file may unpack to any size.

    Raises `UserError` if a folder holds no trace files, or if there is no space for a database. Raises `TraceError` if
    a file does not exist, or cannot be exported or opened.
    """
    # Several paths may name the same file. Messages name the file by the last of these paths.
    named_by_user: dict[Path, Path] = {}
    for path in paths:
        for file in _trace_files(path):
            named_by_user[file.resolve()] = file
    # A report and its database have the same path up to the suffix.
    databases = {file.with_suffix("") for file in named_by_user if file.suffix == ".sqlite"}
    chosen = [file for file in named_by_user if file.suffix not in EXPORTABLE or file.with_suffix("") not in databases]
    traces = [open_trace(named_by_user[file], scratch, large) for file in chosen]
    _make_names_distinct(traces, chosen)
    return traces


def _make_names_distinct(traces: Sequence[Trace], files: Sequence[Path]) -> None:
    """Put the folder's name before each trace name that occurs more than once, such as `rank0/trace`, `rank1/trace`."""
    times_used = Counter(trace.name for trace in traces)
    for trace, file in zip(traces, files, strict=True):
        if times_used[trace.name] > 1:
            trace.name = f"{file.parent.name}/{trace.name}"


def open_trace(path: Path, scratch: Path | None = None, large: bool = False) -> Trace:
    """Open one trace file.

    Its format is detected from its first bytes or, if these fit no format, as in a damaged file, from its suffix.

    `scratch`: the folder for the database if the file is a report; it must exist as long as the trace is read. Without
    it, a report cannot be opened. `large`: if True, a gzipped file may unpack to any size.

    Raises `TraceError` if there is no such file, if its format cannot be read, or if it is damaged.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    file_format = _format_of_content(_beginning(path)) or _format_of_name(path)
    if file_format is None:
        raise _unreadable(path)
    profiler = file_format.profiler
    if profiler.reader is None:
        raise _unreadable(path)
    readable = path
    if file_format.is_report:
        if scratch is None:
            raise _unreadable(path)
        readable = profiler.export(path, scratch)
    reader = importlib.import_module(profiler.reader)
    # Only readers that may refuse a file because of its size have the parameter `large`.
    arguments = {"large": large} if profiler.refuses_large else {}
    trace: Trace = reader.read(readable, **arguments)
    return trace


def _unreadable(path: Path) -> TraceError:
    """Return the error for a file whose format cannot be read. It lists the suffixes of formats that can be read."""
    expected: list[str] = []
    for profiler in PROFILERS.values():
        if profiler.reader is not None:
            expected += profiler.exportable + profiler.readable
    # A CSV file may be a table that lists traces, which `multicard analyze --as-runs` reads.
    table = "; a table of traces is read by --as-runs" if path.suffix == ".csv" else ""
    return TraceError(f"{path}: cannot be read as a trace, expected {listed(expected, 'or')}{table}")


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises `TraceError` if the file cannot be read, is empty, or is a Git LFS pointer to a file that was not downloaded.
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


def _format_of_content(beginning: bytes) -> _Format | None:
    """Return the format of files that begin with these bytes; None if no profiler writes such files.

    Blanks before a readable file's first characters are ignored.
    """
    for profiler in PROFILERS.values():
        if beginning.startswith(profiler.exportable_beginnings):
            return _Format(profiler, is_report=True)
        if beginning.lstrip().startswith(profiler.readable_beginnings):
            return _Format(profiler, is_report=False)
    return None


def _format_of_name(path: Path) -> _Format | None:
    profiler = profiler_of(path)
    if profiler is None:
        return None
    return _Format(profiler, is_report=path.name.endswith(profiler.exportable))


def profiler_of(path: Path) -> Profiler | None:
    """Return the profiler whose files have names with the suffix of this one; None if no profiler's files do."""
    for profiler in PROFILERS.values():
        if path.name.endswith(profiler.exportable + profiler.readable):
            return profiler
    return None


def _trace_files(path: Path) -> list[Path]:
    """Return the trace files in a folder, ordered by name; if `path` is not a folder, return `path` itself.

    Hidden files and files in subfolders are left out. Raises `UserError` if the folder holds no trace files.
    """
    if not path.is_dir():
        return [path]
    # The manifests of a run are in the same folder as its traces, and end in .json as traces do.
    manifests = (CAPTURED, EXPORTED)
    files = [
        file
        for file in sorted(path.iterdir())
        if file.name.endswith(READABLE) and not file.name.startswith(".") and file.name not in manifests
    ]
    if not files:
        raise UserError(f"{path}: no trace files, expected names like *{', *'.join(READABLE)}")
    return files
