"""Whether the files of a run are still those that it left."""

from pathlib import Path

from multicard.archive.manifest import FILES
from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, KEPT, RUN
from multicard.results.run_files import RunFiles


def first_missing(folder: Path) -> str | None:
    """Name of a file that a run directory lacks, of those that are read of a run; None where all are there."""
    return next((name for name in FILES if not (folder / name).is_file()), None)


def check_files(run: RunFiles, traced: bool) -> None:
    """Check that the files that are read of a run are there, and are what it wrote.

    `traced`: whether it has activity tables.

    Raises `UserError` at the first file that is missing, cut or altered.
    """
    folder = run.folder
    kept = folder / KEPT / RUN  # the record has no checksum, but a second copy where the workflow made the run
    if kept.is_file() and kept.read_bytes() != (folder / RUN).read_bytes():
        raise UserError(
            f"{folder / RUN}: altered since the run wrote it: {kept} differs; delete {folder} to run it again"
        )
    for name in dict.fromkeys((*run.written(), *(FILES if traced else ()))):
        path, again = folder / name, f"{folder} to run it again"
        if name.startswith(ACTIVITY):
            again = f"{folder / ACTIVITY / ACTIVITY_INDEX} to have it made again"
        if not path.is_file():
            raise UserError(f"{path}: missing; delete {again}")
        run.check(name)
