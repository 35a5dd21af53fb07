"""Trace files: which of them lie at a path, and how each is opened."""

import importlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from multicard.core.errors import TraceError, UserError
from multicard.core.layout import CAPTURED, EXPORTED
from multicard.profilers import PROFILERS, Profiler
from multicard.trace.model import Trace

READABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable + profiler.readable)


def open_capture(paths: Sequence[Path], scratch: Path) -> list[Trace]:
    """Open the traces of one capture.

    `paths`: trace files, or folders of them, with one file per node or rank. A file that is named twice, and a report
    (.nsys-rep) whose database is there too, count once. `scratch`: where databases of reports are made;
    it must stay while the traces are read.

    Raises `UserError` if there is no trace. Raises `TraceError` if one is not there, or cannot be exported or opened.
    """
    files = {file.resolve(): file for path in paths for file in _trace_files(path)}
    databases = {file.with_suffix("") for file in files if file.suffix == ".sqlite"}
    chosen = [file for file in files if file.suffix != ".nsys-rep" or file.with_suffix("") not in databases]
    traces = [open_trace(files[file], scratch) for file in chosen]
    _tell_apart(traces, chosen)
    return traces


def _tell_apart(traces: Sequence[Trace], files: Sequence[Path]) -> None:
    """Give traces that have the same name those of their folders too, such as `rank0/trace` and `rank1/trace`."""
    times_used = Counter(trace.name for trace in traces)
    for trace, file in zip(traces, files, strict=True):
        if times_used[trace.name] > 1:
            trace.name = f"{file.parent.name}/{trace.name}"


def open_trace(path: Path, scratch: Path | None = None) -> Trace:
    """Open one file by its format; a report only with a `scratch` folder, as `open_capture` has.

    Raises `TraceError` if there is no such file, its format is not known, or it is damaged.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    profiler = profiler_of(path)
    if profiler and scratch and path.name.endswith(profiler.exportable):
        path = profiler.export(path, scratch)
    if profiler and profiler.reader and path.name.endswith(profiler.readable):
        return importlib.import_module(profiler.reader).read(path)
    known = [suffix for each in PROFILERS.values() if each.reader for suffix in each.readable]
    raise TraceError(f"{path}: cannot be read as a trace, expected {', '.join(known[:-1])} or {known[-1]}")


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
