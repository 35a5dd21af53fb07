"""Trace files: which of them lie at a path, and how each is opened."""

import importlib
from pathlib import Path

from multicard.core.errors import TraceError, UserError
from multicard.core.layout import CAPTURED, EXPORTED
from multicard.profilers import PROFILERS
from multicard.trace.model import Trace

READABLE = tuple(suffix for profiler in PROFILERS.values() for suffix in profiler.exportable + profiler.readable)


def open_capture(path: Path, scratch: Path) -> list[Trace]:
    """Open the traces of one capture.

    Parameters
    ----------
    path
        One trace file, or a folder with one file per node or rank. A report (.nsys-rep) whose database lies beside it
        counts once.
    scratch
        Folder for the databases of reports, which are exported here. It must stay while the traces are read.

    Raises
    ------
    UserError
        If there is no trace.
    TraceError
        If one cannot be exported or opened.
    """
    traces = []
    for file in _trace_files(path):
        if not file.is_file():
            raise UserError(f"{file}: no such file")
        for profiler in PROFILERS.values():
            if file.name.endswith(profiler.exportable):
                file = profiler.export(file, scratch)
        traces.append(open_trace(file))
    return traces


def open_trace(path: Path) -> Trace:
    """Open one file by its format.

    Raises
    ------
    TraceError
        If the format is not known or the file is damaged.
    """
    readers = [profiler for profiler in PROFILERS.values() if profiler.reader]
    for profiler in readers:
        if path.name.endswith(profiler.readable):
            return importlib.import_module(profiler.reader).read(path)
    known = [suffix for profiler in readers for suffix in profiler.readable]
    raise TraceError(f"{path}: cannot be read as a trace, expected {', '.join(known[:-1])} or {known[-1]}")


def _trace_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(READABLE) and not file.name.startswith("."))
    databases = {file.stem for file in found if file.suffix == ".sqlite"}
    found = [file for file in found if file.suffix != ".nsys-rep" or file.stem not in databases]
    # A run's own manifests are in the same folder as its traces.
    found = [file for file in found if file.name not in (CAPTURED, EXPORTED)]
    if not found:
        raise UserError(f"{path}: no trace files, expected names like *{', *'.join(READABLE)}")
    return found
