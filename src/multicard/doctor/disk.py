"""Free space on disk and in shared memory, and limits of this process."""

import resource
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from multicard.core.files import unwritable
from multicard.core.units import BYTES, with_unit
from multicard.doctor.checks import Check
from multicard.experiment.runs import Run

SHM = Path("/dev/shm")
# A profiled window of a million kernels and their launches takes 194 MB as SQLite (measured on made traces); one of a
# few steps has a tenth of them. Report, SQLite and tables together stay below this.
RUN_BYTES = 100e6
FLOOR_BYTES = 1e9  # nsys keeps its raw data in the temporary folder while it records
# DataLoader workers hand tensors over by descriptors; this is what most systems allow.
OPEN_FILES = 1024
CONTAINER_SHM_BYTES = 64 * 1024**2  # what Docker gives a container by default


def checks(results: Path, planned: int = 0, runs: Iterable[Run] = ()) -> list[Check]:
    """Check the space for what runs leave, and for what their loader workers pass on.

    `planned`: how many runs leave their files in `results`; `runs`: those of them that can run on this machine.
    """
    needed = max(FLOOR_BYTES, planned * RUN_BYTES)
    why = f"for traces and tables of {planned} runs" if planned * RUN_BYTES > FLOOR_BYTES else "a floor"
    problem = unwritable(results)
    writable = Check("results folder", f"{results}: can be written to")
    if problem:
        writable = Check("results folder", f"cannot be written to: {problem}", "error", "state another results: folder")
    return [
        writable,
        _space("space for results", results, needed, why, "state another folder (results:) or free space"),
        _space(
            "space for data",
            Path("data"),
            FLOOR_BYTES,
            "a floor; data sets and weights take their own size",
            "free space",
        ),
        _space("temporary folder", Path(tempfile.gettempdir()), FLOOR_BYTES, "a floor", "set TMPDIR to a local folder"),
        _shared_memory(list(runs)),
        _open_files(),
    ]


def _size(count: float) -> str:
    return with_unit(count, BYTES)


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def _space(name: str, folder: Path, needed: float, why: str, do: str) -> Check:
    try:
        free = shutil.disk_usage(_existing(folder)).free
    except OSError as error:
        return Check(name, f"{folder}: cannot tell: {error.strerror}", "warning")
    found = f"{folder}: {_size(free)} free, {_size(needed)} wanted ({why})"
    return Check(name, found) if free >= needed else Check(name, found, "error", do)


def _shared_memory(runs: list[Run]) -> Check:
    name = "shared memory"
    try:
        usage = shutil.disk_usage(SHM)
    except OSError:
        return Check(name, f"no {SHM}", "warning", "loader workers (workers above 0) need it")
    found = f"{SHM}: {_size(usage.free)} free"
    needed = max((run.parameters.shared_memory_bytes for run in runs), default=0)
    do = "fewer workers, less prefetch, or a larger /dev/shm (docker --shm-size, srun --mem)"
    if needed > usage.free:
        found += f", {_size(needed)} may be in use by the batches of one run's loader workers"
        return Check(name, found, "error", do)
    if usage.total <= CONTAINER_SHM_BYTES:
        return Check(name, found, "warning", f"a container's small default: {do}")
    return Check(name, found + (f", at most {_size(needed)} used by loader workers" if needed else ""))


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ["unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard)]
    found = f"{limits[0]} (may be raised to {limits[1]})"
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        return Check("open files", found, "warning", f"ulimit -n {OPEN_FILES}, if loader workers fail")
    return Check("open files", found)
