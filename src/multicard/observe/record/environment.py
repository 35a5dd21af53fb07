"""Read where a run takes place: hardware, host and versions."""

import hashlib
import os
import platform
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from multicard import __version__
from multicard.core.system import read_or_none
from multicard.observe.record.visible import visible_gpus

DRIVER = Path("/proc/driver/nvidia/version")
PACKAGES = ("torch", "torchvision", "torchtune", "torchao", "trl", "peft", "transformers", "numpy")
# Each file has 128 random bits. MACHINE_IDS: the id of the installation, see machine-id(5). BOOT_ID: the kernel's id of
# the machine's latest start.
MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def versions() -> dict[str, str | None]:
    """Return the versions of the software that measured numbers depend on; None for software that is absent."""
    versions_of_packages = {package: _version_or_none(package) for package in PACKAGES}
    return {
        "multicard": __version__,
        "python": platform.python_version(),
        **versions_of_packages,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "driver": driver(),
    }


def _version_or_none(package: str) -> str | None:
    return read_or_none(lambda: version(package))


def driver(file: Path = DRIVER) -> str | None:
    """Return the version of NVIDIA's driver as Linux shows it; None if Linux does not show it.

    Its file has the line "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", or
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@…)".
    """
    text = read_or_none(file.read_text) or ""
    match = re.search(r"^NVRM version:.*?Kernel Module.*? {2}(\d+\.[\d.]+)", text, re.M)
    return match[1] if match else None


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that CUDA shows this process."""

    name: str
    memory_bytes: int
    capability: str  # CUDA's compute capability, such as "9.0"


@dataclass(frozen=True)
class LocalHardware:
    """The hardware of this machine, as rank.json has it."""

    processor: str
    logical_cpus: int | None
    usable_cpus: int  # that this process may run on
    memory_bytes: int
    gpus: tuple[VisibleGpu, ...]


@dataclass(frozen=True)
class LocalHost:
    """The name, operating system and digest of this machine, as rank.json has them."""

    name: str
    system: str
    machine_digest: str | None  # see `machine_digest`


def hardware() -> LocalHardware:
    """Return the processor, memory and GPUs of this machine."""
    gpus = [
        VisibleGpu(properties.name, properties.total_memory, f"{properties.major}.{properties.minor}")
        for properties in visible_gpus()
    ]
    cpuinfo = read_or_none(Path("/proc/cpuinfo").read_text) or ""
    model = re.search(r"^model name.*?:(.*)", cpuinfo, re.M)
    return LocalHardware(
        processor=model[1].strip() if model else platform.processor() or platform.machine(),
        logical_cpus=os.cpu_count(),
        usable_cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(gpus),
    )


def host() -> LocalHost:
    """Return the name, operating system and digest of this machine."""
    name = socket.gethostname()
    return LocalHost(name, platform.platform(), machine_digest(name))


def machine_digest(name: str, machine_ids: Sequence[Path] = MACHINE_IDS, boot_id: Path = BOOT_ID) -> str | None:
    """Return 32 hexadecimal digits that are the same for all runs on this machine, and differ on any other machine.

    None if the machine has none of the ids. Archives contain the digest, so that readers recognize results of the same
    machine without its name. A reader may guess host names: `node001` to `node999` are only a thousand guesses, so a
    hash of the name alone would be found. Therefore the hash is keyed with an id of the machine, 128 random bits that
    are in no archive, and a guess cannot be tested without this key. The digest does not reveal the machine-id either,
    which other programs may use; machine-id(5) asks for such a hash. Who knows the key can test a guess: a user of the
    machine, or anybody if the key is part of a public image.

    The host name is hashed, too, because nodes that start from the same image share its machine-id. Containers often
    have no machine-id. Then the key is the kernel's boot id, and the machine has another digest after a restart.
    """
    ids = [(read_or_none(path.read_text) or "").strip() for path in (*machine_ids, boot_id)]
    # The first id that is valid. A machine-id of zeros is not: it is that of an image which was not started yet.
    key = next((text for text in ids if re.fullmatch(r"(?=.*[1-9a-f])[0-9a-f]{32}|[0-9a-f-]{36}", text)), None)
    if key is None:
        return None
    short_name = name.lower().partition(".")[0]  # programs report the name with the domain or without it
    purpose = b"multicard host"  # the digests of other programs differ
    return hashlib.blake2b(short_name.encode(), key=key.encode(), person=purpose, digest_size=16).hexdigest()
