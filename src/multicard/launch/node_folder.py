"""Temporary folders of jobs on a node. Each job first removes the folders of processes that were killed."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from multicard.core.system import read_or_none

PREFIX = "multicard-"
# A file in each folder. The process that made the folder locks it; the lock ends with the process, even by SIGKILL.
OWNER = ".owner"
# Seconds. A folder that changed more recently is not removed, because its process may not have locked the file yet.
SETTLED_S = 60.0


@contextmanager
def node_folder(settled_s: float = SETTLED_S) -> Iterator[Path]:
    """Remove the folders on this node that killed processes of this user left; then yield a new temporary folder.

    `settled_s`: see `remove_abandoned`.
    """
    remove_abandoned(Path(tempfile.gettempdir()), settled_s)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        lock = FileLock(Path(name, OWNER), timeout=0, fallback_to_soft=False)
        # On a file system without locks the folder has no lock. It is safe all the same: `remove_abandoned` cannot lock
        # the file either, so it removes nothing there.
        with suppress(OSError):
            lock.acquire()
        try:
            yield Path(name)
        finally:
            lock.release(force=True)


def remove_abandoned(parent: Path, settled_s: float) -> None:
    """Remove the folders in `parent` whose lock nobody holds, unless they changed in the last `settled_s` seconds.

    A lock shows that the process is gone. The id of the process would not: another process may have the same id by
    now, or the process may run in a container, where ids are others.
    """
    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        folder = owner.parent
        status = read_or_none(folder.stat)
        if status is None or time.time() - status.st_ctime < settled_s:
            continue
        # The lock is held, or the folder belongs to another user and cannot be opened: then it stays.
        with suppress(Timeout, OSError), FileLock(owner, timeout=0, fallback_to_soft=False):
            shutil.rmtree(folder, ignore_errors=True)
