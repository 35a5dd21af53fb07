"""Locks that end with their process, unlike lock files, which a killed process leaves behind."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multicard.core.errors import UserError

LOOK_S = 0.2
# A file, not the folder itself: NFS hands locks of files to its server, and keeps those of folders to one machine.
FILE = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def lock(folder: Path, what: str, wait_s: float = 0.0) -> int:
    """Lock a folder until the process ends or the returned file descriptor is closed.

    A file system that has no locks grants every one. The file that is locked stays: to remove it would let two
    processes each hold a lock of a file of that name.

    Raises
    ------
    UserError
        If another process holds the lock, and still does after `wait_s`.
    """
    held = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o666)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
        except (BlockingIOError, PermissionError) as error:  # NFS may say the second
            if time.monotonic() > deadline:
                os.close(held)
                raise UserError(f"{folder}: {what}") from error
            time.sleep(LOOK_S)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(held)
                raise
            return held


@contextmanager
def locked(folder: Path, what: str, wait_s: float) -> Iterator[None]:
    """Hold the lock while the block runs."""
    held = lock(folder, what, wait_s)
    try:
        yield
    finally:
        os.close(held)
