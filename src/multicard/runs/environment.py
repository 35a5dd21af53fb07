"""Descriptions of the machine and the versions of a run. All texts about them are made here."""

from collections import Counter
from collections.abc import Iterable

from multicard.core.text import gpu_name
from multicard.core.units import BYTES, with_unit
from multicard.runs.record import GpuModel, Hardware, Host, RunRecord

SHOWN_DIGITS = 12  # first digits of a script's checksum that are shown: enough to distinguish versions of the script
NOT_RECORDED = "not recorded"
SYNTHETIC = "synthetic"  # part of the name of a machine or GPU that does not exist; timings on it are invented


def is_synthetic(names: Iterable[str | None]) -> bool:
    """True if one of the names of a machine and its GPUs contains `SYNTHETIC`, so that its timings are invented.

    Real runs on synthetic images have real timings; their machine is not named like this.

    >>> is_synthetic([None, "H100 (synthetic)"]), is_synthetic(["NVIDIA H100"])
    (True, False)
    """
    return any(SYNTHETIC in str(name).lower() for name in names)


def gpu_names(hardware: Hardware | None) -> list[str]:
    """Return the name of each GPU that a job may use, in the form of today's drivers; empty without hardware."""
    return [gpu_name(gpu.name) for gpu in hardware.gpus] if hardware else []


def machine_in_words(hardware: Hardware | None) -> str:
    """Return the GPUs with their numbers, the processor and the number of CPUs; "None" for what is not recorded.

    >>> h100 = GpuModel(name="NVIDIA H100")
    >>> machine_in_words(Hardware(gpus=(h100,) * 4, processor="AMD EPYC 9334", logical_cpus=128))
    '4 × NVIDIA H100, AMD EPYC 9334, 128 CPUs'
    """
    described = hardware or Hardware()
    counts = Counter(gpu_names(described))
    gpus = [f"{count} × {name}" for name, count in counts.items()]
    return ", ".join([*gpus, str(described.processor), f"{described.logical_cpus} CPUs"])


def versions_in_words(record: RunRecord) -> str:
    """Return the versions of a run's software, its profiler, and its script with the first digits of the checksum.

    For example "torch 2.11.0, profiler nsys, train.py 0a1b2c3d4e5f". Versions that are None are left out.
    """
    versions: dict[str, str | None] = dict(record.versions or {})
    versions["profiler"] = record.profiler.used
    script = record.script
    if script is not None and script.sha256:
        versions[str(script.file)] = script.sha256[:SHOWN_DIGITS]
    texts = [f"{name} {version}" for name, version in versions.items() if version is not None]
    return ", ".join(texts)


def machine_facts(host: Host | None, hardware: Hardware | None) -> dict[str, str]:
    """Return host and hardware as texts by label; empty if a job ended before it recorded either of them."""
    if host is None and hardware is None:
        return {}
    host = host or Host()
    described = hardware or Hardware()
    usable = described.usable_cpus or NOT_RECORDED
    logical = described.logical_cpus or NOT_RECORDED
    kinds_of_gpus = Counter(f"{gpu.name}, {_size(gpu.memory_bytes)}" for gpu in described.gpus)
    gpus = "; ".join(f"{count} × {gpu}" for gpu, count in kinds_of_gpus.items())
    # If hardware was recorded and lists no GPUs, the machine has none.
    no_gpus = "none" if hardware else NOT_RECORDED
    return {
        "Host": host.name or NOT_RECORDED,
        "Processor": described.processor or NOT_RECORDED,
        "CPUs": f"{usable} usable of {logical}",
        "Memory": _size(described.memory_bytes),
        "GPUs": gpus or no_gpus,
        "System": host.system or NOT_RECORDED,
    }


def profiler_in_words(record: RunRecord) -> str:
    """Return the profiler of a run, why it was used and, if there is no trace, why."""
    profiler = record.profiler
    missing = f"; no trace: {profiler.trace_missing}" if profiler.trace_missing else ""
    return f"{profiler.used} ({profiler.why or 'no reason recorded'}){missing}"


def gpu_in_words(gpu: GpuModel) -> str:
    """Return the name of a GPU, followed by its memory if that is recorded."""
    name = gpu_name(gpu.name)
    if not gpu.memory_bytes:
        return name
    return f"{name} ({with_unit(gpu.memory_bytes, BYTES)})"


def smallest_gpu_bytes(hardware: Hardware | None) -> int | None:
    """Return the memory of the GPU with the least memory; None if no memory is recorded."""
    if hardware is None:
        return None
    sizes = [gpu.memory_bytes for gpu in hardware.gpus if gpu.memory_bytes]
    return min(sizes, default=None)


def _size(count: int | None) -> str:
    return with_unit(count, BYTES) if count else NOT_RECORDED
