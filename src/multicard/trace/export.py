"""Make the traces of a run readable: reports of Nsight Systems become SQLite."""

from collections.abc import Sequence
from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.files import sha256
from multicard.core.layout import CAPTURED, EXPORTED, TRACE
from multicard.core.prepared import is_unchanged
from multicard.core.trace_manifests import Exported, TraceFile, read_captured, read_exported
from multicard.profilers import PROFILERS, Profiler


def export_run(folder: Path) -> None:
    """Make a readable file of each file that the profiler of a run left, and write the manifest exported.json.

    The manifest lists the readable files or, if there are none, the reason. A file that cannot be exported does not
    raise an error, because the run itself is sound; then no file is listed. Nothing is done if a manifest already lists
    exports of these captures, and all of the exported files are unchanged.

    `folder`: that of the run. Raises `UserError` if there is no space for a readable file.
    """
    trace = folder / TRACE
    captured = read_captured(trace)
    captured_sha256 = sha256(trace / CAPTURED)
    if _is_exported(trace, captured_sha256):
        return
    profiler = PROFILERS[captured.profiler]
    missing = captured.missing
    files: list[TraceFile] = []
    if missing is None:
        try:
            for file in captured.files:
                files.append(_export(file, profiler, trace))
        except TraceError as error:
            missing = str(error)
    _delete_others(trace, profiler, [*captured.files, *files])
    exported = Exported(
        profiler=profiler.name,
        missing=missing,
        files=() if missing else tuple(files),
        captured_sha256=captured_sha256,
    )
    exported.write(trace)


def _export(captured: TraceFile, profiler: Profiler, trace: Path) -> TraceFile:
    """Make a readable file of a captured file.

    Raises `TraceError` if the captured file is missing, was changed since, or cannot be exported.
    """
    path = trace / captured.name
    if not is_unchanged(path, captured.bytes, captured.sha256):
        raise TraceError(f"{captured.name} is missing or not what was captured")
    return TraceFile.of(profiler.export(path, trace), captured.node)


def _delete_others(trace: Path, profiler: Profiler, files: Sequence[TraceFile]) -> None:
    """Delete the profiler's readable files that `files` does not list, such as those of an earlier attempt."""
    kept = {CAPTURED, EXPORTED, *(file.name for file in files)}
    for path in trace.iterdir():
        if path.name.endswith(profiler.readable) and path.name not in kept:
            path.unlink()


def _is_exported(trace: Path, captured_sha256: str) -> bool:
    """True if exported.json lists exports of these captures, and all of the exported files are unchanged.

    `captured_sha256`: the checksum of captured.json. False if exported.json lists no files.
    """
    if not (trace / EXPORTED).is_file():
        return False
    exported = read_exported(trace)
    if exported.captured_sha256 != captured_sha256 or not exported.files:
        return False
    return all(is_unchanged(trace / file.name, file.bytes, file.sha256) for file in exported.files)
