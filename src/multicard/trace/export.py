"""Make the traces of a run readable: reports of Nsight Systems become SQLite."""

from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.files import described, read_object, sha256, write_json
from multicard.core.layout import CAPTURED, EXPORTED, TRACE
from multicard.profilers import PROFILERS


def export_run(folder: Path) -> None:
    """Make readable files of what the profiler left; the manifest exported.json lists them, or says why there are none.

    A report that does not export is no error here, since the run itself is sound. What was exported of these captures
    and is still there is not exported again.
    """
    trace = folder / TRACE
    captured, of = read_object(trace / CAPTURED), sha256(trace / CAPTURED)
    if _is_exported(trace, of):
        return
    profiler, missing, files = PROFILERS[captured["profiler"]], captured["missing"], []
    for entry in captured["files"]:
        path = trace / entry["name"]
        if missing is None and (not path.exists() or sha256(path) != entry["sha256"]):
            missing = f"{entry['name']} is missing or not what was captured"
        try:
            if missing is None:
                node = {key: entry[key] for key in ("node",) if key in entry}
                files.append(described(profiler.export(path, trace)) | node)
        except TraceError as error:
            missing = str(error)
    keep = {CAPTURED, EXPORTED, *(entry["name"] for entry in (*captured["files"], *files))}
    for old in trace.iterdir():
        if old.name.endswith(profiler.readable) and old.name not in keep:
            old.unlink()
    exported = {"profiler": profiler.name, "missing": missing, "files": [] if missing else files}
    write_json(trace / EXPORTED, exported | {"captured_sha256": of})


def _is_exported(trace: Path, captured: str) -> bool:
    """Whether the captures of this checksum were exported, and what they became is as it was written."""
    if not (trace / EXPORTED).is_file():
        return False
    exported = read_object(trace / EXPORTED)
    files = exported.get("files")
    return (
        exported.get("captured_sha256") == captured
        and bool(files)
        and all((path := trace / file["name"]).is_file() and sha256(path) == file["sha256"] for file in files)
    )
