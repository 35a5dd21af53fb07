"""Machines, versions, variables and profilers of the runs, each combination once; and the limits of machines."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.analysis.machine.limits import lines, read_machine
from multicard.core.text import listed
from multicard.report.tables import Table
from multicard.runs.environment import machine_facts, profiler_in_words
from multicard.runs.record import Hardware, RunRecord

Facts = dict[str, str]


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


def environment(records: Sequence[RunRecord]) -> Environment:
    """Gather what the records of runs say about machines, versions and profilers."""
    machines = _machines(records)
    return Environment(
        machines=_counted(machines),
        versions=_counted(record.versions for record in records),
        variables=_counted(_variables(record) for record in records),
        profilers=Counter(map(profiler_in_words, records)).most_common(),
        first_started=min((record.started for record in records if record.started), default=""),
    )


def _machines(records: Sequence[RunRecord]) -> list[Facts]:
    """Return the facts of the machine of each record.

    A job is given a part of the GPUs and CPUs of its machine: the largest part that a job was given is shown.
    """
    records_by_machine: dict[str, list[RunRecord]] = {}
    for record in records:
        records_by_machine.setdefault(_machine_key(record), []).append(record)
    facts = []
    for alike in records_by_machine.values():
        largest = max(alike, key=_part_of_machine)
        facts += [machine_facts(largest.host, largest.hardware)] * len(alike)
    return facts


def _machine_key(record: RunRecord) -> str:
    """Return a key that is equal for jobs on one machine, whatever part of it they were given."""
    hardware = record.hardware or Hardware()
    kinds = sorted({str(gpu.name) for gpu in hardware.gpus})
    host = record.host.model_dump() if record.host else None
    return json.dumps([host, hardware.processor, hardware.logical_cpus, hardware.memory_bytes, kinds])


def _part_of_machine(record: RunRecord) -> tuple[int, int]:
    """Return how many GPUs and CPUs a job was given."""
    hardware = record.hardware or Hardware()
    return len(hardware.gpus), hardware.usable_cpus or 0


def _variables(record: RunRecord) -> Mapping[str, str] | None:
    """Return the variables that may change results; that there was none is a fact, too."""
    return record.variables if record.variables is None else record.variables or {"Set": "none"}


def _counted(kinds: Iterable[Mapping[str, Any] | None]) -> list[tuple[Facts, int]]:
    texts = (json.dumps({str(k): str(v or "none") for k, v in facts.items()}) for facts in kinds if facts)
    return [(json.loads(facts), count) for facts, count in Counter(texts).most_common()]


def machine_page(path: Path) -> dict[str, Any]:
    """Name, facts, limits and notes of a record of limits; `UserError` if it is damaged."""
    limits = read_machine(path)
    facts = machine_facts(limits.host, limits.hardware)
    versions = ", ".join(f"{name} {value}" for name, value in (limits.versions or {}).items() if value)
    rows = [[line.what, line.conditions, line.rate, line.spread] for line in lines(limits)]
    host = (limits.host and limits.host.name) or "unknown host"
    return {
        "name": f"{host}, {'GPUs' if limits.device == 'cuda' else 'CPUs'}",
        "facts": facts | {"Measured": str(limits.started), "Versions": versions},
        "limits": Table(["Limit", "Of", "Mean", "95% CI"], [False, False, True, True], rows),
        "notes": limits.notes,
    }
