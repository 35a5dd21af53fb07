"""Free space on disk and in shared memory."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from multicard.core.files import unwritable
from multicard.core.units import BYTES, with_unit
from multicard.experiment.runs import Run
from multicard.machine.checks import Check

SHM = Path("/dev/shm")
# A profiled window of a million kernels and their launches takes 194 MB as SQLite (measured on made traces); one of a
# few steps has a tenth of them. Report, SQLite and tables together stay below this.
RUN_BYTES = 100e6
FLOOR_BYTES = 1e9  # nsys keeps its raw data in the temporary folder while it records
CONTAINER_SHM_BYTES = 64 * 1024**2  # what Docker gives a container by default


def checks(results: Path, planned: int = 0, runs: Iterable[Run] = ()) -> list[Check]:
    """Check the space for what runs leave, and for what their loader workers pass on.

    `planned`: how many runs leave their files in `results`; `runs`: those of them that can run on this machine.
    """
    needed = max(FLOOR_BYTES, planned * RUN_BYTES)
    if problem := unwritable(results):
        results_check = Check("results folder", f"cannot be written to: {problem}", "error", "set another results:")
    else:
        results_check = _space("results folder", results, needed, "set another results: or free space")
    return [
        results_check,
        _space("data folder", Path("data"), FLOOR_BYTES, "free space"),
        _space("temporary folder", Path(tempfile.gettempdir()), FLOOR_BYTES, "set TMPDIR to a local folder"),
        _shared_memory(list(runs)),
    ]


def _space(name: str, folder: Path, needed: float, do: str) -> Check:
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(name, f"{folder}: cannot tell: {error.strerror}", "warning")
    found = f"{folder}: {with_unit(free, BYTES)} free, at least {with_unit(needed, BYTES)} needed"
    return Check(name, found) if free >= needed else Check(name, found, "error", do)


def _shared_memory(runs: list[Run]) -> Check:
    name = "shared memory"
    try:
        usage = shutil.disk_usage(SHM)
    except OSError:
        return Check(name, f"no {SHM}", "warning", "loader workers (num_workers above 0) need it")
    found = f"{SHM}: {with_unit(usage.free, BYTES)} free"
    needed = max((run.parameters.shared_memory_bytes for run in runs), default=0)
    found += f", at most {with_unit(needed, BYTES)} used by the loader workers of a run" if needed else ""
    do = "fewer num_workers, a smaller prefetch_factor, or a larger /dev/shm (docker --shm-size, srun --mem)"
    if needed > usage.free:
        return Check(name, found, "error", do)
    if usage.total <= CONTAINER_SHM_BYTES:
        return Check(name, found, "warning", f"a container's small default: {do}")
    return Check(name, found)
