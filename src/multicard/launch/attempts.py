"""Attempts at a run, one at a time. Each begins by clearing the run directory, except for an earlier checkpoint."""

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from multicard.core.errors import UserError
from multicard.core.files import sha256
from multicard.core.layout import CHECKPOINT, EPOCHS, GPU_SAMPLES, KEPT, LOG, MEMORY_SNAPSHOT, RUN, SAVED, STEPS, TRACE
from multicard.core.system import ask, read_or_none
from multicard.launch.ending import deferred_signals, end_process
from multicard.launch.node_folder import node_folder
from multicard.launch.profiler_choice import ProfilerChoice
from multicard.programs.machine import slurm_job
from multicard.runs.parameters import JobParameters, run_id
from multicard.runs.record import ScriptRecord

SCRATCH = ".scratch-"
LOCK = ".lock"
# Seconds to wait for the lock of a run directory. An attempt that was interrupted releases it sooner.
WAIT_S = 20.0
# Locking a file raises one of these errors (errno) on a file system that has no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job: its parameters, profiler, time limit and folders; made by `job.run_job`."""

    parameters: JobParameters
    profiler: ProfilerChoice
    time_limit_s: float
    # The run directory.
    folder: Path
    # The folder that ranks write to: see `scratch_of_ranks`.
    scratch: Path
    # A temporary folder in the run directory, which all nodes see.
    shared: Path

    @property
    def name(self) -> str:
        """The id of the run."""
        return run_id(self.parameters)

    @property
    def log(self) -> Path:
        """The file with the output of the job."""
        return self.folder / LOG

    @property
    def checkpoint(self) -> Path:
        """The file from which the job resumes, if an earlier attempt was interrupted and left it."""
        return self.folder / CHECKPOINT


@contextmanager
def scratch_in(folder: Path, wait_s: float = WAIT_S) -> Iterator[Path]:
    """Clear the run directory `folder`, and yield a temporary folder in it.

    The temporary folder is removed before this process ends, even if several signals ask the process to end.

    Raises `UserError` if another process still runs the job of this directory after `wait_s` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, wait_s), deferred_signals() as signals:
        _clear(folder)
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix=SCRATCH))
        try:
            with signals.delivered(end_process):
                yield scratch
        finally:
            # This removes the folders of other attempts, too: a process of a killed attempt may have written to the
            # folder of that attempt after `_clear` had removed it.
            _remove_scratch(folder)


def scratch_of_ranks(parameters: JobParameters, shared: Path) -> AbstractContextManager[Path]:
    """Return the folder that ranks write to.

    In a Slurm job on one node it is a temporary folder of that node, because writing over a network disturbs what is
    measured. Otherwise it is `shared`. In a job on several nodes, each node makes a folder of its own for its ranks,
    and copies the files to `shared` when they have ended.
    """
    if slurm_job() and parameters.nodes == 1:
        return node_folder()
    return nullcontext(shared)


@contextmanager
def _locked(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the lock of a run directory while the block runs; if the file system has no locks, run it without one.

    Raises `UserError` if another process still holds the lock after `wait_s` seconds.
    """
    # filelock's substitute, a soft lock, is a file. It would stay behind if this process were killed.
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
    """Return True if a process holds the lock of a run directory, so that it runs the job there.

    False on a file system without locks, even while a process runs the job.
    """
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
    """Remove the files of an earlier attempt except its checkpoint.

    run.json goes first, because a directory without run.json counts as incomplete, whatever else is in it.
    """
    for name in (RUN, STEPS, EPOCHS, LOG, MEMORY_SNAPSHOT):
        (folder / name).unlink(missing_ok=True)
    for samples in folder.glob(f"{Path(GPU_SAMPLES).stem}*"):
        samples.unlink()
    for leftover in (folder / KEPT, folder / TRACE, folder / SAVED):
        shutil.rmtree(leftover, ignore_errors=True)
    _remove_scratch(folder)
    # Temporary files of `atomic_write`, left by a process that was killed while it wrote.
    for name in (RUN, STEPS, EPOCHS, CHECKPOINT):
        for leftover in folder.glob(f".{Path(name).stem}-*"):
            leftover.unlink()


def _remove_scratch(folder: Path) -> None:
    for leftover in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def script_version(script: Path | None, folder: Path) -> ScriptRecord:
    """Return the name and checksum of a user's script, and the git commit that is checked out in its folder.

    `file` is None if `script` is None, and `sha256` also if the script cannot be read. `commit` and `modified` are None
    if `folder` is in no git repository, or if git is missing.
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
