"""Temporary folders of jobs on a node, which the next job there removes if their process was killed."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from multicard.core.system import read_or_none

PREFIX = "multicard-"
OWNER = ".owner"  # file that the process which made the folder holds locked, until it ends in whatever way
SETTLED_S = 60.0  # by which a process has locked the file in the folder that it has made


@contextmanager
def node_folder() -> Iterator[Path]:
    """Give a temporary folder on this node, and remove those that killed processes of this user have left."""
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        lock = FileLock(Path(name, OWNER), timeout=0, fallback_to_soft=False)
        # Without locks, nobody can tell that the folder is abandoned either.
        with suppress(OSError):
            lock.acquire()
        try:
            yield Path(name)
        finally:
            lock.release(force=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders of killed processes.

    A lock tells better than the number of a process, which another may have by now, or which counts in a container.
    """
    for owner in parent.glob(f"{PREFIX}*/{OWNER}"):
        created_s = read_or_none(lambda owner=owner: owner.parent.stat().st_ctime)
        if created_s is None or time.time() - created_s < SETTLED_S:
            continue
        # A folder of another user cannot be opened.
        with suppress(Timeout, OSError), FileLock(owner, timeout=0, fallback_to_soft=False):
            shutil.rmtree(owner.parent, ignore_errors=True)
