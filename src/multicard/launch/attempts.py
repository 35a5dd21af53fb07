"""Attempts at a run: one at a time, each in a clean run directory with the checkpoint of the attempt before."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from multicard.core.errors import UserError
from multicard.core.files import sha256
from multicard.core.layout import EPOCHS, GPU_SAMPLES, KEPT, LOG, MEMORY_SNAPSHOT, RUN, SAVED, STEPS, TRACE
from multicard.core.system import ask, read_or_none
from multicard.launch.ending import deferred_signals, end_process
from multicard.runs.record import ScriptRecord

SCRATCH = ".scratch-"
LOCK = ".lock"
WAIT_S = 20.0  # an interrupted attempt exits within this time
# Errors of a file system that has no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def scratch_in(folder: Path, wait_s: float = WAIT_S) -> Iterator[Path]:
    """Clear the run directory, and yield a temporary folder in it.

    However many signals this process gets, the folder is removed before it ends.

    Raises `UserError` if another process is still running the job there after `wait_s`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, wait_s), deferred_signals() as signals:
        _clear(folder)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=SCRATCH))
        try:
            with signals.delivered(end_process):
                yield scratch
        finally:
            # Also those of other attempts: a process of a killed one may have written to its own since `_clear`.
            _remove_scratch(folder)


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[None]:
    """Keep other processes out while the block runs, where the file system has locks."""
    # A soft lock, filelock's own substitute, would outlive a process that was killed.
    lock = FileLock(folder / LOCK, timeout=wait_s, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(f"{folder}: another process is running this job; wait for it, or end it") from error
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield
    finally:
        lock.release()


def is_at_work(folder: Path) -> bool:
    """Return True if a process is running the job of a run directory; False where the file system has no locks."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0, fallback_to_soft=False):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def _clear(folder: Path) -> None:
    """Remove the files of an earlier attempt, run.json first: without it nothing else counts."""
    for name in (RUN, STEPS, EPOCHS, LOG, MEMORY_SNAPSHOT):
        (folder / name).unlink(missing_ok=True)
    for samples in folder.glob(f"{Path(GPU_SAMPLES).stem}*"):
        samples.unlink()
    for leftover in (folder / KEPT, folder / TRACE, folder / SAVED):
        shutil.rmtree(leftover, ignore_errors=True)
    _remove_scratch(folder)
    # Files that `atomic_write` had not finished.
    for name in (RUN, STEPS, EPOCHS):
        for leftover in folder.glob(f".{Path(name).stem}-*"):
            leftover.unlink()


def _remove_scratch(folder: Path) -> None:
    for leftover in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def script_version(script: Path | None, folder: Path) -> ScriptRecord:
    """Return the checksum of a user's script, and the commit of the git repository that its folder is in.

    A field is None where there is no file, no repository or no git.
    """
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    commit = ask([*git, "rev-parse", "HEAD"])
    changes = ask([*git, "status", "--porcelain", "--untracked-files=no", "--", "."])
    in_repository = commit.problem is None
    return ScriptRecord(
        file=script.name if script else None,
        sha256=read_or_none(lambda: sha256(script)) if script else None,
        commit=commit.output.strip() if in_repository else None,
        modified=bool(changes.lines) if in_repository and changes.problem is None else None,
    )
