"""Make the traces of a run readable: reports of Nsight Systems become SQLite."""

from pathlib import Path

from multicard.core.errors import TraceError
from multicard.core.files import described, read_json, sha256, write_json
from multicard.core.layout import CAPTURED, EXPORTED, TRACE
from multicard.profilers import nsys


def export_run(folder: Path) -> None:
    """Make the traces of a run readable: reports of nsys become SQLite, PyTorch's traces are so already.

    The manifest exported.json lists the readable files, or says why there are none; a report that does not
    export is no error here, since the run itself is sound.
    """
    trace = folder / TRACE
    captured = read_json(trace / CAPTURED)
    missing, files = captured["missing"], []
    for old in trace.glob("*.sqlite"):
        old.unlink()
    for entry in captured["files"]:
        path, node = trace / entry["name"], {}
        if missing is None and (not path.exists() or sha256(path) != entry["sha256"]):
            missing = f"{entry['name']} is missing or not what was captured"
        if missing is None and path.suffix == ".nsys-rep":
            try:
                database = path.with_suffix(".sqlite")
                nsys.export(path, database)
                path, node = database, {key: entry[key] for key in ("node",) if key in entry}
            except TraceError as error:
                missing = str(error)
        if missing is None:
            files.append(described(path) | node)
    exported = {"profiler": captured["profiler"], "missing": missing, "files": [] if missing else files}
    write_json(trace / EXPORTED, exported)
