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

# Suffixes of the names of files that must be exported, and of all that can be opened.
EXPORTABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable)
READABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable + profiler.readable)

# A clone of a repository without its large files has files in their place that begin so (git-lfs, docs/spec.md).
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BEGINNING_BYTES = 4096


@dataclass(frozen=True)
class _Format:
    """The format of a file: the profiler that writes it, and whether it is a report that must be exported first."""

    profiler: Profiler
    is_report: bool


def open_capture(paths: Sequence[Path], scratch: Path, large: bool = False) -> list[Trace]:
    """Open the traces of one capture.

    `paths`: trace files, or folders of them, with one file per node or rank. A file that is named twice, and a report
    (.nsys-rep) whose database is there too, count once. `scratch`: where databases of reports are made; it must stay
    while the traces are read. `large`: a gzipped file may unpack to any size.

    Raises `UserError` if there is no trace. Raises `TraceError` if one does not exist, or cannot be exported or opened.
    """
    # Several paths may name one file. Messages name it as the user did last.
    named_by_user: dict[Path, Path] = {}
    for path in paths:
        for file in _trace_files(path):
            named_by_user[file.resolve()] = file
    # A report and its database have the same name up to the suffix.
    databases = {file.with_suffix("") for file in named_by_user if file.suffix == ".sqlite"}
    chosen = [file for file in named_by_user if file.suffix not in EXPORTABLE or file.with_suffix("") not in databases]
    traces = [open_trace(named_by_user[file], scratch, large) for file in chosen]
    _make_names_distinct(traces, chosen)
    return traces


def _make_names_distinct(traces: Sequence[Trace], files: Sequence[Path]) -> None:
    """Give traces that have the same name that of their folder too, such as `rank0/trace` and `rank1/trace`."""
    times_used = Counter(trace.name for trace in traces)
    for trace, file in zip(traces, files, strict=True):
        if times_used[trace.name] > 1:
            trace.name = f"{file.parent.name}/{trace.name}"


def open_trace(path: Path, scratch: Path | None = None, large: bool = False) -> Trace:
    """Open one file by its format; a report only with a `scratch` folder, as for `open_capture`.

    The format follows from the content, or else, as for a damaged file, from the suffix.

    Raises `TraceError` if there is no such file, its format is not known, or it is damaged.
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
    # Only readers that may refuse a file for its size have the parameter.
    arguments = {"large": large} if profiler.refuses_large else {}
    trace: Trace = reader.read(readable, **arguments)
    return trace


def _unreadable(path: Path) -> TraceError:
    """Return the error for a file of a format that is not read, which lists those that are."""
    expected: list[str] = []
    for profiler in PROFILERS.values():
        if profiler.reader is not None:
            expected += profiler.exportable + profiler.readable
    # `analyze --as-runs` takes a table in CSV that lists traces.
    table = "; a table of traces is read by --as-runs" if path.suffix == ".csv" else ""
    return TraceError(f"{path}: cannot be read as a trace, expected {listed(expected, 'or')}{table}")


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file.

    Raises `TraceError` if there are none, or they show that the file only stands for one that was not downloaded.
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
    """Return the format of files that begin so; None if no profiler writes such files."""
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
    """Return the profiler that leaves files of such a name; None if none does."""
    for profiler in PROFILERS.values():
        if path.name.endswith(profiler.exportable + profiler.readable):
            return profiler
    return None


def _trace_files(path: Path) -> list[Path]:
    """Return the trace files in a folder, by name; the path itself if it is no folder.

    Raises `UserError` if there are none.
    """
    if not path.is_dir():
        return [path]
    # A run's own manifests are in the same folder as its traces.
    manifests = (CAPTURED, EXPORTED)
    files = [
        file
        for file in sorted(path.iterdir())
        if file.name.endswith(READABLE) and not file.name.startswith(".") and file.name not in manifests
    ]
    if not files:
        raise UserError(f"{path}: no trace files, expected names like *{', *'.join(READABLE)}")
    return files
