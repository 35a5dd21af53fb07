"""The origin of a trace, as the file states it: its rank, the GPUs of its machine, and the clock of its times."""

import re
from pathlib import Path
from typing import Any

from multicard.trace.kineto.document import Document
from multicard.trace.kineto.findings import NO_RANK, Findings
from multicard.trace.kineto.values import scalar, whole

# The name that torch.profiler.tensorboard_trace_handler gives a file: host, process id, and time.
_HANDLED = re.compile(r"(.+)_([0-9]+)\.[0-9]+\.pt\.trace\.json(?:\.gz)?")
# Times of old versions count from 1970. A trace with smaller ones, which are later than 2001, has a clock of its own.
_SURELY_SINCE_1970_NS = 10**18


def rank(document: Document, findings: Findings) -> int | None:
    """Return the rank of the process that wrote a trace; None if it was not recorded, or is no number."""
    information = document.distributedInfo
    stated = information.get("rank") if isinstance(information, dict) else None
    number = whole(scalar(stated))
    findings[NO_RANK] += stated is not None and number is None
    return number


def gpus(document: Document, used: set[int | None]) -> tuple[str, ...]:
    """Return the names of the kinds of GPUs that ran something, each once.

    `used`: numbers of the devices that ran something. The names of all GPUs are returned if none of these is listed.
    """
    # Dictionaries keep the order of the names, each once.
    names: dict[str, None] = {}
    used_names: dict[str, None] = {}
    for properties in _devices(document):
        name = properties.get("name")
        if not isinstance(name, str) or not name:
            continue
        names[name] = None
        device = whole(scalar(properties.get("id")))
        if device in used:
            used_names[name] = None
    return tuple(used_names or names)


def gpu_count(document: Document) -> int | None:
    """Return the number of GPUs that the process could see; None if none is listed."""
    return len(_devices(document)) or None


def gpu_identities(document: Document, process: int) -> dict[tuple[int, int], str]:
    """Return the identity of each GPU for which one was recorded, by process and device."""
    identities = {}
    for properties in _devices(document):
        device = whole(scalar(properties.get("id")))
        identity = properties.get("uuid")
        if device is not None and isinstance(identity, str) and identity:
            identities[process, device] = identity
    return identities


def clock(document: Document, path: Path, process: int, earliest_ns: int | None) -> str | None:
    """Return the identity of the clock of a trace; None if its times cannot be compared with those of others.

    Since PyTorch 2.4 times count from a base that is the same for months, whatever the machine; before, from 1970. So
    traces of two machines, whose clocks differ, have the same identity if neither tells its host.

    `earliest_ns`: the earliest start in the trace.
    """
    base = whole(scalar(document.baseTimeNanoseconds)) or 0
    if base == 0 and (earliest_ns is None or earliest_ns < _SURELY_SINCE_1970_NS):
        return None
    host = _host(document, path, process)
    return f"{host or 'unknown host'}, since {base} ns"


def _host(document: Document, path: Path, process: int) -> str | None:
    """Return the name of the host: as the file states it, else as PyTorch's handler writes it into the file's name."""
    if isinstance(document.hostname, str) and document.hostname:
        return document.hostname
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


def _devices(document: Document) -> list[dict[str, Any]]:
    """Return the properties of each GPU that the file lists."""
    listed = document.deviceProperties
    if not isinstance(listed, list):
        return []
    return [properties for properties in listed if isinstance(properties, dict)]
