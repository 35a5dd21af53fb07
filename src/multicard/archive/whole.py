"""Whether the files of a run are still those that it left."""

from pathlib import Path

from multicard.analysis.runs.run_files import RunFiles
from multicard.archive.manifest import FILES
from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX

PARQUET_END = b"PAR1"  # which a file that was cut has lost


def first_missing(folder: Path) -> str | None:
    """Name of a file that a run directory lacks, of those that are read of a run; None where all are there."""
    return next((name for name in FILES if not (folder / name).is_file()), None)


def check_files(run: RunFiles, traced: bool) -> None:
    """Check that the files that are read of a run are there, and are what it wrote.

    The record tells no checksums of activity tables, which there are only if `traced`: of them a cut is found.

    Raises `UserError` at the first file that is missing, cut or altered.
    """
    folder, written = run.folder, [entry["name"] for entry in run.record.get("files") or ()]
    for name in dict.fromkeys((*written, *(FILES if traced else ()))):
        path, again = folder / name, f"{folder} to run it again"
        if name.startswith(ACTIVITY):
            again = f"{folder / ACTIVITY / ACTIVITY_INDEX} to have it made again"
        if not path.is_file():
            raise UserError(f"{path}: missing; delete {again}")
        run.check(name)
        if path.suffix == ".parquet" and _end(path) != PARQUET_END:
            raise UserError(f"{path}: cut; delete {again}")


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(PARQUET_END)))
        return file.read(len(PARQUET_END))
