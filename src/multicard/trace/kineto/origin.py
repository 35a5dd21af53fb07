"""What a trace says of where it comes from: its rank, the GPUs of its machine, and the clock of its times."""

import re
from pathlib import Path
from typing import Any

from multicard.trace.kineto.document import Document
from multicard.trace.kineto.findings import NO_RANK, Findings
from multicard.trace.kineto.values import whole

# The name that torch.profiler.tensorboard_trace_handler gives a file: host, process id, and time.
_HANDLED = re.compile(r"(.+)_([0-9]+)\.[0-9]+\.pt\.trace\.json(?:\.gz)?")
# Times of old versions count from 1970. A trace with smaller ones, which are later than 2001, has a clock of its own.
_SURELY_SINCE_1970_NS = 10**18


def rank(document: Document, findings: Findings) -> int | None:
    """Return the rank of the process that wrote a trace; None if it was not recorded, or is no number."""
    information = document.distributedInfo
    stated = information.get("rank") if isinstance(information, dict) else None
    found = whole(_plain(stated))
    findings[NO_RANK] += stated is not None and found is None
    return found


def gpus(document: Document, used: set[int | None]) -> tuple[str, ...]:
    """Return the names of the kinds of GPUs that ran something, or where none is known to, of all."""
    names = [
        (whole(_plain(properties.get("id"))), name)
        for properties in _devices(document)
        if isinstance(name := properties.get("name"), str) and name
    ]
    own = [name for device, name in names if device in used]
    return tuple(dict.fromkeys(own or [name for _, name in names]))


def gpu_count(document: Document) -> int | None:
    """Return the number of GPUs that the process could see; None if none is listed."""
    return len(_devices(document)) or None


def gpu_identities(document: Document, process: int) -> dict[tuple[int, int], str]:
    """Return the identity of each GPU for which one was recorded, by process and device."""
    found = {}
    for properties in _devices(document):
        device, identity = whole(_plain(properties.get("id"))), properties.get("uuid")
        if device is not None and isinstance(identity, str) and identity:
            found[process, device] = identity
    return found


def clock(document: Document, path: Path, process: int, earliest_ns: int | None) -> str | None:
    """Return the identity of the clock of a trace; None if its times cannot be compared with those of others.

    Since PyTorch 2.4 times count from a base that is the same for months, whatever the machine; before, from 1970. So
    traces of two machines, whose clocks differ, have the same identity if neither tells its host.

    `earliest_ns`: the earliest start in the trace.
    """
    base = whole(_plain(document.baseTimeNanoseconds)) or 0
    if base == 0 and (earliest_ns is None or earliest_ns < _SURELY_SINCE_1970_NS):
        return None
    host = _host(document, path, process)
    return f"{host or 'unknown host'}, since {base} ns"


def _host(document: Document, path: Path, process: int) -> str | None:
    if isinstance(document.hostname, str) and document.hostname:
        return document.hostname
    for name in (path.name, document.traceName):
        found = _HANDLED.fullmatch(Path(name).name) if isinstance(name, str) else None
        if found and int(found[2]) == process:
            return found[1]
    return None


def _devices(document: Document) -> list[dict[str, Any]]:
    properties = document.deviceProperties
    return [each for each in properties if isinstance(each, dict)] if isinstance(properties, list) else []


def _plain(value: Any) -> Any:
    """Return a number or text; None for anything else."""
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None
