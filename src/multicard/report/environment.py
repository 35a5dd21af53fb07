"""Machines, versions, environment variables, profilers and inputs of the runs, each combination once."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from multicard.analysis.evidence import names_synthetic
from multicard.core.text import listed
from multicard.report.wording import size

Facts = list[tuple[str, str]]
UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Environment:
    """Facts about the runs, each with its number of runs, the most frequent first."""

    machines: list[tuple[Facts, int]]
    versions: list[tuple[Facts, int]]
    variables: list[tuple[Facts, int]]
    profilers: list[tuple[str, int]]
    data: list[Facts]
    models: list[Facts]
    first_started: str
    last_ended: str
    devices: list[str]

    @property
    def mixed(self) -> str | None:
        """What differs between the runs; None if nothing does."""
        found = [
            f"{len(kinds)} {word}"
            for kinds, word in (
                (self.machines, "machines"),
                (self.versions, "sets of versions"),
                (self.variables, "sets of environment variables"),
            )
            if len(kinds) > 1
        ]
        return listed(found) or None

    @property
    def synthetic(self) -> bool:
        """Whether some of the machines are synthetic, by their names."""
        return names_synthetic(value for facts, _ in self.machines for _, value in facts)


def environment(records: Iterable[Mapping[str, Any]]) -> Environment:
    """Gather what the run records say about machine, versions, profiler, data and models."""
    records = list(records)
    times = [(record.get("started") or "", record.get("ended") or "") for record in records]
    return Environment(
        machines=_counted(machine_facts(record) for record in records),
        versions=_counted(_versions(record) for record in records),
        variables=_counted(_variables(record) for record in records),
        profilers=Counter(_profiler(record) for record in records).most_common(),
        data=_each(_data(record) for record in records),
        models=_each(_model(record) for record in records),
        first_started=min((start for start, _ in times if start), default=""),
        last_ended=max((end for _, end in times if end), default=""),
        devices=sorted({str((record.get("parameters") or {}).get("device")) for record in records}),
    )


def machine_facts(record: Mapping[str, Any]) -> Facts:
    """Host and hardware by a record; empty where a job ended before it recorded them."""
    host, hardware = record.get("host") or {}, record.get("hardware") or {}
    if not host and not hardware:
        return []
    gpus = Counter(
        f"{gpu.get('name')}, {size(gpu.get('memory_bytes') or 0)}, compute capability {gpu.get('capability')}"
        for gpu in hardware.get("gpus") or []
    )
    memory = hardware.get("memory_bytes")
    usable, logical = hardware.get("usable_cpus"), hardware.get("logical_cpus")
    return [
        ("Host", str(host.get("name") or UNKNOWN)),
        ("Processor", str(hardware.get("processor") or UNKNOWN)),
        ("CPUs", f"{usable or UNKNOWN} usable of {logical or UNKNOWN}" if hardware else UNKNOWN),
        ("Memory", size(memory) if memory else UNKNOWN),
        ("GPUs", "; ".join(f"{n} × {gpu}" for gpu, n in gpus.items()) or ("none" if hardware else UNKNOWN)),
        ("System", str(host.get("system") or UNKNOWN)),
    ]


def _versions(record: Mapping[str, Any]) -> Facts:
    return [(str(name), str(value or "none")) for name, value in (record.get("versions") or {}).items()]


def _variables(record: Mapping[str, Any]) -> Facts:
    """Variables that may change results; that there was none is a fact too."""
    found = record.get("variables")
    return [] if found is None else [(str(name), str(value)) for name, value in found.items()] or [("Set", "none")]


def _profiler(record: Mapping[str, Any]) -> str:
    profiler = record.get("profiler") or {}
    missing = f"; no trace: {profiler['trace_missing']}" if profiler.get("trace_missing") else ""
    return f"{profiler.get('used') or UNKNOWN} ({profiler.get('why') or 'no reason recorded'}){missing}"


def _data(record: Mapping[str, Any]) -> Facts:
    data = record.get("data") or {}
    if not data:
        return []
    return [("Data set", str(data.get("dataset"))), ("Source", str(data.get("source"))), *_checksums(data)]


def _model(record: Mapping[str, Any]) -> Facts:
    model = record.get("model") or {}
    if not isinstance(model, Mapping) or not model:
        return []
    named = [("Model", str(model.get("model"))), ("Architecture", str(model.get("architecture")))]
    return [*named, *_checksums(model)]


def _checksums(origin: Mapping[str, Any]) -> Facts:
    files = [file for file in origin.get("files") or [] if isinstance(file, Mapping)]
    return [(str(file.get("name")), f"SHA-256 {str(file.get('sha256'))[:16]}…") for file in files[:8]]


def _counted(kinds: Iterable[Facts]) -> list[tuple[Facts, int]]:
    counts = Counter(json.dumps(facts) for facts in kinds if facts)
    return [([(name, value) for name, value in json.loads(facts)], count) for facts, count in counts.most_common()]


def _each(kinds: Iterable[Facts]) -> list[Facts]:
    return sorted(facts for facts, _ in _counted(kinds))
