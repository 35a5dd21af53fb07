"""What one attempt at a run leaves to the next: nothing but its checkpoint."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multicard.core.layout import EPOCHS, LOG, RUN, SAVED, STEPS, TRACE
from multicard.core.lock import locked

SCRATCH = ".scratch-"
WAIT_S = 20.0  # an attempt that was told to end a moment ago may need so long


@contextmanager
def scratch_in(folder: Path) -> Iterator[Path]:
    """Clear the run directory, and give a folder in it that goes when the job has ended.

    Raises
    ------
    UserError
        If another attempt is at work there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, "another attempt at this run is at work", WAIT_S):
        _clear(folder)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=SCRATCH))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove what an earlier attempt left, run.json first: without it nothing else counts."""
    for name in (RUN, STEPS, EPOCHS, LOG):
        (folder / name).unlink(missing_ok=True)
    for leftover in (folder / TRACE, folder / SAVED, *folder.glob(f"{SCRATCH}*")):
        shutil.rmtree(leftover, ignore_errors=True)
    for name in (RUN, STEPS, EPOCHS):  # half-written ones
        for leftover in folder.glob(f".{Path(name).stem}-*"):
            leftover.unlink()


def written(checkpoint: Path) -> tuple[int, int] | None:
    """What tells a checkpoint from the one that takes its place; None without one."""
    if not checkpoint.exists():
        return None
    found = checkpoint.stat()
    return found.st_ino, found.st_mtime_ns


def is_spent(outcome: str, before: tuple[int, int] | None, now: tuple[int, int] | None) -> bool:
    """Whether no later attempt may go on from the checkpoint: nothing is left to do, or it may be what went wrong."""
    if outcome == "failed":
        return before is not None and now == before
    return outcome != "timed_out"
