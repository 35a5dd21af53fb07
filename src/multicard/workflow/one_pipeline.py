"""Allow one pipeline at a time in a folder, since the jobs of a pipeline are identified by their folder.

Snakemake locks outputs: a pipeline with another configuration would start beside the first one, and take the jobs of
that one for its own, or for jobs that no pipeline waits for.
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
    start: str | None  # see `start_of`; a later process of the same number has another one
    since: str  # for people

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def lock_folder(folder: Path) -> tuple[FileLock, Pipeline | None]:
    """Lock a folder for this pipeline until the process ends, even by SIGKILL.

    Return the lock, and the pipeline before this one if it was started on another machine: not all file systems have
    locks that other machines see, so it may still be running.

    Raises `UserError` if a pipeline is running in the folder.
    """
    (folder / LOCK).parent.mkdir(parents=True, exist_ok=True)
    earlier = read_or_none(lambda: Pipeline(*json.loads((folder / HOLDER).read_text(encoding="utf-8"))))
    elsewhere = earlier if earlier is not None and earlier.host != socket.gethostname() else None
    lock = FileLock(folder / LOCK, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
        is_running = False
    except Timeout:
        is_running = True
    except OSError:  # a file system without locks
        is_running = earlier is not None and elsewhere is None and start_of(earlier.pid) == earlier.start
    if is_running:
        holder = f" ({earlier})" if earlier else ""
        remedy = "wait for its end, or start this one in another folder"
        raise UserError(f"a pipeline is running in this folder{holder}; {remedy}")
    return lock, elsewhere


def announce(folder: Path, lock: FileLock) -> None:
    """Write to the folder which pipeline holds the lock, until the process ends by itself."""
    pid = os.getpid()
    here = Pipeline(socket.gethostname(), pid, start_of(pid), f"{datetime.now():%Y-%m-%d %H:%M}")
    (folder / HOLDER).write_text(json.dumps(here), encoding="utf-8")

    def leave() -> None:
        (folder / HOLDER).unlink(missing_ok=True)
        lock.release()

    atexit.register(leave)
