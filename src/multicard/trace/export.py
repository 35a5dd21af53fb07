"""Make the traces of a run readable: reports of Nsight Systems become SQLite."""

from pathlib import Path
from typing import Any

from multicard.core.errors import TraceError
from multicard.core.files import described, read_object, sha256, write_json
from multicard.core.layout import CAPTURED, EXPORTED, TRACE
from multicard.profilers import PROFILERS, Profiler

# The entry of a file in a manifest: name, size and checksum, as `core.files.described` returns them. If the file is
# from one of several nodes, "node" has the name of that node.
FileEntry = dict[str, Any]


def export_run(folder: Path) -> None:
    """Make a readable file of each file that the profiler of a run left, and write the manifest exported.json.

    The manifest lists the readable files or, if there are none, the reason. A file that cannot be exported does not
    raise an error, because the run itself is sound; then no file is listed. Nothing is done if a manifest already lists
    exports of these captures, and all of the exported files are unchanged.

    `folder`: that of the run. Raises `UserError` if there is no space for a readable file.
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
    """Make a readable file of a captured file.

    Raises `TraceError` if the captured file is missing, was changed since, or cannot be exported.
    """
    path = trace / captured["name"]
    if not path.exists() or sha256(path) != captured["sha256"]:
        raise TraceError(f"{captured['name']} is missing or not what was captured")
    exported = described(profiler.export(path, trace))
    if "node" in captured:
        exported["node"] = captured["node"]
    return exported


def _delete_others(trace: Path, profiler: Profiler, files: list[FileEntry]) -> None:
    """Delete the profiler's readable files that `files` does not list, such as those of an earlier attempt."""
    kept = {CAPTURED, EXPORTED, *(entry["name"] for entry in files)}
    for path in trace.iterdir():
        if path.name.endswith(profiler.readable) and path.name not in kept:
            path.unlink()


def _is_exported(trace: Path, captured_sha256: str) -> bool:
    """True if exported.json lists exports of these captures, and all of the exported files are unchanged.

    `captured_sha256`: the checksum of captured.json. False if exported.json lists no files.
    """
    if not (trace / EXPORTED).is_file():
        return False
    exported = read_object(trace / EXPORTED)
    files = exported.get("files")
    if exported.get("captured_sha256") != captured_sha256 or not files:
        return False
    return all(_is_unchanged(trace / entry["name"], entry["sha256"]) for entry in files)


def _is_unchanged(path: Path, expected_sha256: str) -> bool:
    return path.is_file() and sha256(path) == expected_sha256
