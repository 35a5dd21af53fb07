"""Allow one pipeline on Slurm at a time in a folder, because a pipeline recognizes its jobs by their folder.

Snakemake itself locks only outputs, so it lets a pipeline with another configuration start beside the first one. That
pipeline would take the jobs of the first one for its own, or for jobs that no pipeline waits for.
"""

import atexit
import json
import os
import socket
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from multicard.core.errors import UserError
from multicard.core.system import read_or_none, start_of

LOCK = Path(".snakemake", "multicard", "pipeline.lock")
HOLDER = LOCK.with_suffix(".json")


class Pipeline(NamedTuple):
    """A pipeline that was started in a folder and has not ended by itself."""

    host: str
    pid: int
    # When the process was started, as `start_of` returns it. A later process with the same pid has another start.
    start: str | None
    # Local time at which it announced itself, for messages.
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def lock_folder(folder: Path) -> tuple[FileLock, Pipeline | None]:
    """Lock a folder for this pipeline. The lock ends with the process, even if SIGKILL ends it.

    Return the lock, and a pipeline that may still be running on another machine, or None. Such a pipeline was started
    in the folder on that machine and has not ended by itself. The lock does not exclude it, because on some file
    systems other machines do not see locks.

    Raises `UserError` if a pipeline is running in the folder.
    """
    (folder / LOCK).parent.mkdir(parents=True, exist_ok=True)
    # None if no pipeline has announced itself, or the file is damaged.
    earlier = read_or_none(lambda: Pipeline(*json.loads((folder / HOLDER).read_text(encoding="utf-8"))))
    elsewhere = earlier if earlier is not None and earlier.host != socket.gethostname() else None
    lock = FileLock(folder / LOCK, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
        is_running = False
    except Timeout:
        is_running = True
    except OSError:
        # The file system has no locks, so look whether the process of the earlier pipeline still exists here.
        is_running = earlier is not None and elsewhere is None and start_of(earlier.pid) == earlier.start
    if is_running:
        holder = f" ({earlier})" if earlier else ""
        remedy = "wait for its end, or start this one in another folder"
        raise UserError(f"a pipeline is running in this folder{holder}; {remedy}")
    return lock, elsewhere


def announce(folder: Path, lock: FileLock) -> None:
    """Write into the folder that this pipeline holds the lock.

    When the process ends by itself, it deletes this file and releases the lock. If it is killed, the file stays.
    """
    pid = os.getpid()
    here = Pipeline(socket.gethostname(), pid, start_of(pid), f"{datetime.now():%Y-%m-%d %H:%M}")
    (folder / HOLDER).write_text(json.dumps(here), encoding="utf-8")

    def leave() -> None:
        (folder / HOLDER).unlink(missing_ok=True)
        lock.release()

    atexit.register(leave)
