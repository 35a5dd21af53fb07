"""The origin of a trace, as its file states it: its rank, the GPUs of its machine, and the clock of its times."""

import re
from pathlib import Path
from typing import NamedTuple

from multicard.trace.kineto.document import Document
from multicard.trace.kineto.findings import NO_RANK, Findings
from multicard.trace.kineto.values import scalar, whole

# The name that torch.profiler.tensorboard_trace_handler gives a file: host, process id, and time.
_HANDLED = re.compile(r"(.+)_([0-9]+)\.[0-9]+\.pt\.trace\.json(?:\.gz)?")
# A file of PyTorch before 2.4 states no base of its times, because they count from 1970. If the earliest time of such a
# file is below this one, which is in 2001, its times count from a moment that is not known.
_SURELY_SINCE_1970_NS = 10**18


class _Gpu(NamedTuple):
    """A GPU that a file lists.

    `device`: its number; None if the file states no whole number. `name`: the name of its model, and `identity`: its
    UUID; both are None if the file states none.
    """

    device: int | None
    name: str | None
    identity: str | None


def rank(document: Document, findings: Findings) -> int | None:
    """Return the rank of the process that wrote a trace; None if it was not recorded, or is no whole number."""
    information = document.distributedInfo
    stated = information.get("rank") if isinstance(information, dict) else None
    number = whole(scalar(stated))
    findings[NO_RANK] += stated is not None and number is None
    return number


def gpus(document: Document, used: set[int | None]) -> tuple[str, ...]:
    """Return the names of the GPU models that ran something, each once.

    `used`: the numbers of the devices that ran something; None stands for an unknown device. If the file states no name
    for any of the known ones, the names of all GPUs that it lists are returned.
    """
    # Dictionaries keep the order of the names, each once.
    names: dict[str, None] = {}
    used_names: dict[str, None] = {}
    for gpu in _gpus(document):
        if gpu.name is None:
            continue
        names[gpu.name] = None
        if gpu.device is not None and gpu.device in used:
            used_names[gpu.name] = None
    return tuple(used_names or names)


def gpu_count(document: Document) -> int | None:
    """Return the number of GPUs that the process could see; None if the file lists no GPU."""
    return len(_gpus(document)) or None


def gpu_identities(document: Document, process: int) -> dict[tuple[int, int], str]:
    """Return the identity of each GPU for which one was recorded, by process and device."""
    identities = {}
    for gpu in _gpus(document):
        if gpu.device is not None and gpu.identity is not None:
            identities[process, gpu.device] = gpu.identity
    return identities


def clock(document: Document, path: Path, process: int, earliest_ns: int | None) -> str | None:
    """Return the identity of the clock of a trace; None if its times cannot be compared with those of other traces.

    The identity consists of the name of the host and of the moment, in nanoseconds since 1970, from which times count.
    Before PyTorch 2.4 times count from 1970. Since then they count from a base that is the same for months, on every
    machine. So if two files do not state their hosts, they may have the same identity, even if they are from two
    machines with different clocks.

    `earliest_ns`: the earliest start in the trace, in nanoseconds; None if the trace has no events. `process`: the id
    of the process, which shows if a host's name in the name of a file is that of this process.
    """
    base = whole(scalar(document.baseTimeNanoseconds)) or 0
    if base == 0 and (earliest_ns is None or earliest_ns < _SURELY_SINCE_1970_NS):
        return None
    host = _host(document, path, process)
    return f"{host or 'unknown host'}, since {base} ns"


def _host(document: Document, path: Path, process: int) -> str | None:
    """Return the name of the host: as the file states it, else as PyTorch's handler writes it into the file's name.

    None if neither has it.
    """
    if isinstance(document.host_name, str) and document.host_name:
        return document.host_name
    for name in (path.name, document.traceName):
        if not isinstance(name, str):
            continue
        match = _HANDLED.fullmatch(Path(name).name)
        if match is None:
            continue
        host, process_in_name = match.groups()
        # A file that was renamed may have the name of another process.
        if int(process_in_name) == process:
            return host
    return None


def _gpus(document: Document) -> list[_Gpu]:
    """Return the GPUs that the file lists; an entry that is no JSON object is left out."""
    listed = document.deviceProperties
    if not isinstance(listed, list):
        return []
    gpus: list[_Gpu] = []
    for properties in listed:
        if isinstance(properties, dict):
            gpu = _Gpu(
                device=whole(scalar(properties.get("id"))),
                name=_text(properties.get("name")),
                identity=_text(properties.get("uuid")),
            )
            gpus.append(gpu)
    return gpus


def _text(value: object) -> str | None:
    """Return a value of JSON if it is a text and not empty, else None."""
    return value if isinstance(value, str) and value else None
