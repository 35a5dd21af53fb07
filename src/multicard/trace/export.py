"""Make the traces of a run readable: reports of Nsight Systems become SQLite."""

from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.files import described, read_object, sha256, write_json
from multicard.core.layout import CAPTURED, EXPORTED, TRACE
from multicard.profilers import PROFILERS, Profiler

# What manifests state of a file (`core.files.described`), and the node that it is from, if there are several.
FileEntry = dict[str, Any]


def export_run(folder: Path) -> None:
    """Make readable files of what the profiler left; the manifest exported.json lists them, or why there are none.

    A report that does not export is no error here, since the run itself is sound. What was exported of these captures
    and is still there is not exported again.
    """
    trace = folder / TRACE
    captured = read_object(trace / CAPTURED)
    captured_sha256 = sha256(trace / CAPTURED)
    if _is_exported(trace, captured_sha256):
        return
    profiler = PROFILERS[captured["profiler"]]
    missing = captured["missing"]
    files: list[FileEntry] = []
    if missing is None:
        try:
            for entry in captured["files"]:
                files.append(_export(entry, profiler, trace))
        except TraceError as error:
            missing = str(error)
    _delete_others(trace, profiler, captured["files"] + files)
    exported = {
        "profiler": profiler.name,
        "missing": missing,
        "files": [] if missing else files,
        "captured_sha256": captured_sha256,
    }
    write_json(trace / EXPORTED, exported)


def _export(captured: FileEntry, profiler: Profiler, trace: Path) -> FileEntry:
    """Make a readable file of a captured one.

    Raises `TraceError` if it is not there as it was captured, or cannot be exported.
    """
    path = trace / captured["name"]
    if not path.exists() or sha256(path) != captured["sha256"]:
        raise TraceError(f"{captured['name']} is missing or not what was captured")
    exported = described(profiler.export(path, trace))
    if "node" in captured:
        exported["node"] = captured["node"]
    return exported


def _delete_others(trace: Path, profiler: Profiler, files: list[FileEntry]) -> None:
    """Delete readable files of the profiler that are not among these, such as those of an earlier attempt."""
    kept = {CAPTURED, EXPORTED, *(entry["name"] for entry in files)}
    for path in trace.iterdir():
        if path.name.endswith(profiler.readable) and path.name not in kept:
            path.unlink()


def _is_exported(trace: Path, captured_sha256: str) -> bool:
    """True if the captures of this checksum were exported, and the exported files are as they were written."""
    if not (trace / EXPORTED).is_file():
        return False
    exported = read_object(trace / EXPORTED)
    files = exported.get("files")
    if exported.get("captured_sha256") != captured_sha256 or not files:
        return False
    return all(_is_unchanged(trace / entry["name"], entry["sha256"]) for entry in files)


def _is_unchanged(path: Path, expected_sha256: str) -> bool:
    return path.is_file() and sha256(path) == expected_sha256
