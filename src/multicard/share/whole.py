"""Check that the files of a run are all there, and are unchanged since the run wrote them."""

from pathlib import Path

from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, KEPT, RUN
from multicard.results.run_files import RunFiles
from multicard.share.manifest import FILES


def first_missing(folder: Path) -> str | None:
    """Return the first of `FILES` that a run directory lacks; None if all of them are there."""
    return next((name for name in FILES if not (folder / name).is_file()), None)


def check_files(run: RunFiles, traced: bool) -> None:
    """Raise `UserError` at the first file of a run that is missing, or was cut or altered since the run wrote it.

    The files are those with a checksum, and, if `traced` is True because the run must have activity tables, also all of
    `FILES`.
    """
    folder = run.folder
    # The record has no checksum. A run that the workflow launched has a second copy of its record instead.
    kept = folder / KEPT / RUN
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
