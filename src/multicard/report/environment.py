"""Machines, versions, variables and profilers of the runs, each combination once; and the limits of machines."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.analysis.machine.limits import lines, read_machine
from multicard.core.text import listed
from multicard.core.units import BYTES, with_unit
from multicard.report.tables import Table

Facts = dict[str, str]
UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Environment:
    """Facts about the runs, each with its number of runs, the most frequent first."""

    machines: list[tuple[Facts, int]]
    versions: list[tuple[Facts, int]]
    variables: list[tuple[Facts, int]]
    profilers: list[tuple[str, int]]
    first_started: str

    @property
    def mixed(self) -> str | None:
        """What differs between the runs; None if nothing does."""
        kinds = {"machines": self.machines, "sets of versions": self.versions}
        kinds |= {"sets of environment variables": self.variables}
        return listed([f"{len(found)} {word}" for word, found in kinds.items() if len(found) > 1]) or None


def environment(records: Iterable[Mapping[str, Any]]) -> Environment:
    """Gather what the run records say about machine, versions and profiler."""
    records = list(records)
    return Environment(
        machines=_counted(_machines(records)),
        versions=_counted(record.get("versions") for record in records),
        variables=_counted(_variables(record) for record in records),
        profilers=Counter(_profiler(record) for record in records).most_common(),
        first_started=min((start for record in records if (start := record.get("started"))), default=""),
    )


def _machines(records: Iterable[Mapping[str, Any]]) -> list[Facts]:
    """Facts of the machine of each record. A job is given a part of its GPUs and CPUs: the largest part is shown."""
    found: dict[str, list[tuple[tuple[int, int], Facts]]] = {}
    for record in records:
        host, hardware = record.get("host") or {}, dict(record.get("hardware") or {})
        gpus, usable = hardware.pop("gpus", None) or [], hardware.pop("usable_cpus", None) or 0
        kinds = sorted({str(gpu.get("name")) for gpu in gpus})
        key = json.dumps([host, hardware, kinds], sort_keys=True)
        found.setdefault(key, []).append(((len(gpus), usable), machine_facts(record)))
    most = [(max(own, key=lambda each: each[0])[1], len(own)) for own in found.values()]
    return [facts for facts, count in most for _ in range(count)]


def machine_facts(record: Mapping[str, Any]) -> Facts:
    """Host and hardware by a record; empty where a job ended before it recorded them."""
    host, hardware = record.get("host") or {}, record.get("hardware") or {}
    if not host and not hardware:
        return {}
    gpus = Counter(f"{gpu.get('name')}, {_size(gpu.get('memory_bytes'))}" for gpu in hardware.get("gpus") or [])
    usable, logical = hardware.get("usable_cpus"), hardware.get("logical_cpus")
    return {
        "Host": str(host.get("name") or UNKNOWN),
        "Processor": str(hardware.get("processor") or UNKNOWN),
        "CPUs": f"{usable or UNKNOWN} usable of {logical or UNKNOWN}",
        "Memory": _size(hardware.get("memory_bytes")),
        "GPUs": "; ".join(f"{n} × {gpu}" for gpu, n in gpus.items()) or ("none" if hardware else UNKNOWN),
        "System": str(host.get("system") or UNKNOWN),
    }


def _size(count: float | None) -> str:
    return with_unit(count, BYTES) if count else UNKNOWN


def _variables(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Variables that may change results; that there was none is a fact too."""
    found = record.get("variables")
    return found if found is None else found or {"Set": "none"}


def _profiler(record: Mapping[str, Any]) -> str:
    profiler = record.get("profiler") or {}
    missing = f"; no trace: {profiler['trace_missing']}" if profiler.get("trace_missing") else ""
    return f"{profiler.get('used') or UNKNOWN} ({profiler.get('why') or 'no reason recorded'}){missing}"


def _counted(kinds: Iterable[Mapping[str, Any] | None]) -> list[tuple[Facts, int]]:
    texts = (json.dumps({str(k): str(v or "none") for k, v in facts.items()}) for facts in kinds if facts)
    return [(json.loads(facts), count) for facts, count in Counter(texts).most_common()]


def machine_page(path: Path) -> dict[str, Any]:
    """Name, facts, limits and notes of a record of limits; `UserError` if it is damaged."""
    limits = read_machine(path)
    facts = machine_facts({"host": limits.host, "hardware": limits.hardware})
    versions = ", ".join(f"{name} {value}" for name, value in (limits.versions or {}).items() if value)
    rows = [[line.what, line.conditions, line.rate, line.spread] for line in lines(limits)]
    return {
        "name": f"{(limits.host or {}).get('name', 'unknown host')}, {'GPUs' if limits.device == 'cuda' else 'CPUs'}",
        "facts": facts | {"Measured": str(limits.started), "Versions": versions},
        "limits": Table(["Limit", "Of", "Mean", "95% CI"], [False, False, True, True], rows),
        "notes": limits.notes,
    }
