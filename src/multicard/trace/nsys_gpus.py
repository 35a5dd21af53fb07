"""Read the GPUs of a machine, and the GPU of each device of a process, from an SQLite export of Nsight Systems."""

from dataclasses import dataclass

from multicard.trace.sqlite_file import SqliteFile

# The UUID of a display adapter that cannot run CUDA.
_NO_UUID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Gpus:
    """The GPUs of an export that can run CUDA.

    `names`: the distinct names of the GPUs that the traced processes used; those of all GPUs if the export does not
    state which ones they used. `gpu_count`: the number of GPUs of the machine; None if the export does not list them.
    `identities`: a text that identifies the physical GPU, by process id and number of the device in that process.
    """

    names: tuple[str, ...]
    gpu_count: int | None
    identities: dict[tuple[int, int], str]


@dataclass(frozen=True)
class _Gpu:
    """A row of TARGET_INFO_GPU that can run CUDA."""

    name: str
    identity: str


@dataclass(frozen=True)
class _Device:
    """A row of TARGET_INFO_CUDA_DEVICE: a device of a process, and the number of its GPU in the export."""

    process: int
    number: int
    gpu: int


def gpus_of(database: SqliteFile) -> Gpus:
    """Read the GPUs of an export.

    TARGET_INFO_GPU lists the machine's graphics adapters; on Windows also adapters of other vendors, and adapters that
    are software. Exports from schema 3.17 on also have TARGET_INFO_CUDA_DEVICE, which links the devices of processes to
    these adapters.
    """
    listed = _read_gpus(database)
    gpus = listed or {}
    identities = {}
    used_names = set()
    for device in _read_devices(database):
        if device.gpu in gpus:
            gpu = gpus[device.gpu]
            identities[device.process, device.number] = gpu.identity
            used_names.add(gpu.name)
    names = used_names or {gpu.name for gpu in gpus.values()}
    gpu_count = None if listed is None else len(listed)
    return Gpus(tuple(sorted(names - {""})), gpu_count, identities)


def _read_gpus(database: SqliteFile) -> dict[int, _Gpu] | None:
    """Return the GPUs that can run CUDA, by their number in the export; None if it does not list their names."""
    columns = database.tables.get("TARGET_INFO_GPU", set())
    if not {"id", "name"} <= columns:
        return None
    # `smCount` and `computeMajor` are 0 for an adapter that cannot run CUDA. If the table has neither column, all
    # adapters count.
    abilities = sorted({"smCount", "computeMajor"} & columns)
    is_capable = " OR ".join(f"{column} > 0" for column in abilities) or "1"
    uuid_column = "uuid" if "uuid" in columns else "NULL"
    rows = database.ask(f"SELECT id, name, {uuid_column} FROM TARGET_INFO_GPU WHERE {is_capable} ORDER BY id")
    gpus = {}
    for number, name, uuid in rows:
        # Without a UUID, the GPU is identified by its number and the path of the file, since other files use the same
        # numbers.
        has_uuid = uuid not in (None, "", _NO_UUID)
        identity = str(uuid) if has_uuid else f"GPU {number} of {database.path}"
        gpus[number] = _Gpu("" if name is None else str(name), identity)
    return gpus


def _read_devices(database: SqliteFile) -> list[_Device]:
    """Return the devices of processes; nothing if the export does not list them."""
    columns = database.tables.get("TARGET_INFO_CUDA_DEVICE", set())
    if not {"pid", "cudaId", "gpuId"} <= columns:
        return []
    rows = database.ask("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
    return [_Device(*row) for row in rows if all(isinstance(value, int) for value in row)]
