"""Which GPUs a machine has and which one a device of a process is, in an SQLite export of Nsight Systems."""

from typing import Any, NamedTuple

from multicard.trace.sqlite_file import SqliteFile

_NO_UUID = "00000000-0000-0000-0000-000000000000"  # that of a display adapter


class Gpus(NamedTuple):
    """GPUs of an export that can run CUDA."""

    names: tuple[str, ...]  # of those that its processes used, or of all where it does not tell; each name once
    count: int | None  # of the machine; None where the export does not tell
    identities: dict[tuple[int, int], str]  # of the physical GPU, by process id and number of the device in the process


class _Gpu(NamedTuple):
    """A row of TARGET_INFO_GPU that can run CUDA."""

    name: str
    identity: str


def gpus_of(database: SqliteFile) -> Gpus:
    """Read the GPUs of an export.

    TARGET_INFO_GPU lists the machine's graphics adapters, on Windows those of other makers and of software, too.
    TARGET_INFO_CUDA_DEVICE, which exports have from schema 3.17 on, says which of them a device of a process is.
    """
    gpus = _gpus(database)
    devices = _devices(database)
    identities = {}
    names = set()
    for process, device, number in devices:
        if number in gpus:
            identities[process, device] = gpus[number].identity
            names.add(gpus[number].name)
    if not names:
        names = {gpu.name for gpu in gpus.values()}
    count = len(gpus) if "TARGET_INFO_GPU" in database.tables else None
    return Gpus(tuple(sorted(names - {""})), count, identities)


def _gpus(database: SqliteFile) -> dict[int, _Gpu]:
    """Return the GPUs that can run CUDA, by their number in the export."""
    columns = database.tables.get("TARGET_INFO_GPU", set())
    if not {"id", "name"} <= columns:
        return {}
    # Both are 0 for what cannot run CUDA.
    abilities = sorted({"smCount", "computeMajor"} & columns)
    is_capable = " OR ".join(f"{column} > 0" for column in abilities) or "1"
    uuid = "uuid" if "uuid" in columns else "NULL"
    rows = database.ask(f"SELECT id, name, {uuid} FROM TARGET_INFO_GPU WHERE {is_capable} ORDER BY id")
    return {
        number: _Gpu("" if name is None else str(name), _identity(database, number, uuid))
        for number, name, uuid in rows
    }


def _devices(database: SqliteFile) -> list[tuple[int, int, int]]:
    """Return process id, number of the device in the process, and number of the GPU in the export."""
    if not {"pid", "cudaId", "gpuId"} <= database.tables.get("TARGET_INFO_CUDA_DEVICE", set()):
        return []
    rows = database.ask("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
    return [row for row in rows if all(isinstance(value, int) for value in row)]


def _identity(database: SqliteFile, number: int, uuid: Any) -> str:
    """Return the UUID of a GPU; where there is none, what is unique to it among those of all files."""
    return str(uuid) if uuid not in (None, "", _NO_UUID) else f"GPU {number} of {database.path}"
