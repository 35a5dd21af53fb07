"""Temporary folders of jobs on a node; the next job there removes those of processes that were killed."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from multicard.core.system import read_or_none

PREFIX = "multicard-"
# A file in each folder: the process that made the folder holds it locked until it ends in whatever way.
OWNER = ".owner"
# After so long, a process has locked the file in the folder that it has made.
SETTLED_S = 60.0


@contextmanager
def node_folder(settled_s: float = SETTLED_S) -> Iterator[Path]:
    """Yield a temporary folder on this node, and remove those that killed processes of this user have left.

    `settled_s`: age in seconds below which a folder stays.
    """
    remove_abandoned(Path(tempfile.gettempdir()), settled_s)
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        lock = FileLock(Path(name, OWNER), timeout=0, fallback_to_soft=False)
        # On a file system without locks, no process finds out that the folder is abandoned either.
        with suppress(OSError):
            lock.acquire()
        try:
            yield Path(name)
        finally:
            lock.release(force=True)


def remove_abandoned(parent: Path, settled_s: float) -> None:
    """Remove the folders in `parent` whose processes were killed, but those that are younger than `settled_s`.

    A lock shows that more safely than the number of a process, which another may have by now, or which is one of a
    container.
    """
    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        folder = owner.parent
        status = read_or_none(folder.stat)
        if status is None or time.time() - status.st_ctime < settled_s:
            continue
        # A folder of another user cannot be opened.
        with suppress(Timeout, OSError), FileLock(owner, timeout=0, fallback_to_soft=False):
            shutil.rmtree(folder, ignore_errors=True)
