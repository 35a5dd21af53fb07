"""Free space on disk and in shared memory."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from multicard.config.runs import Run
from multicard.core.files import unwritable
from multicard.core.units import BYTES, with_unit
from multicard.machine import Check, Verdict

SHM = Path("/dev/shm")
# Bytes on disk that each planned run is expected to need at most. A profiled window of a million kernels and their
# launches takes 194 MB as SQLite (measured on synthetic traces). A window of a few steps has a tenth of these kernels,
# and its report, SQLite and tables together stay below this number.
RUN_BYTES = 100e6
# Bytes of shared memory that have to be free if the needs of loader workers are not known. Docker's default, 64 MB in
# all, is hardly ever enough.
SHM_BYTES = 128e6
# Bytes that have to be free at least in the temporary folder, where nsys keeps its raw data while it records, and in
# the results folder.
FLOOR_BYTES = 1e9


def checks(results: Path, planned: int = 0, runs: Iterable[Run] = ()) -> list[Check]:
    """Check the free space for the files of runs, for temporary files, and for the shared memory of loader workers.

    `planned`: number of runs that leave their files in `results`. `runs`: those of them that can run on this machine,
    and so load data here.
    """
    return [
        _results_folder(results, planned),
        _space("temporary folder", Path(tempfile.gettempdir()), FLOOR_BYTES, "set TMPDIR to a local folder", "error"),
        _shared_memory(runs),
    ]


def _results_folder(results: Path, planned: int) -> Check:
    if problem := unwritable(results):
        return Check("results folder", f"cannot be written to: {problem}", "error", "set another results:")
    needed = max(FLOOR_BYTES, planned * RUN_BYTES)
    return _space("results folder", results, needed, "set another results: or free space", "error")


def _shared_memory(runs: Iterable[Run]) -> Check:
    needed = max((run.parameters.shared_memory_bytes for run in runs), default=0)
    do = "fewer num_workers, a smaller prefetch_factor, or a larger /dev/shm (docker --shm-size, srun --mem)"
    if needed:
        return _space("shared memory", SHM, needed, do, "error")
    return _space("shared memory", SHM, SHM_BYTES, do, "warning")


def _space(name: str, folder: Path, needed: float, do: str, verdict: Verdict) -> Check:
    """Compare the free bytes on the disk of a folder with the bytes that are needed; `verdict` is that for too few.

    If the folder does not exist yet, the nearest folder above it that exists is looked at.
    """
    candidates = (folder.absolute(), *folder.absolute().parents)
    existing = next(path for path in candidates if path.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(name, f"{folder}: cannot tell: {error.strerror}", "warning")
    space = f"{folder}: {with_unit(free, BYTES)} free, at least {with_unit(needed, BYTES)} needed"
    return Check(name, space) if free >= needed else Check(name, space, verdict, do)
