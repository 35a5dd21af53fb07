"""Machines, versions, variables and profilers of runs, counted; and the measured limits of machines."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from multicard.core.grouping import grouped
from multicard.core.text import listed
from multicard.report.tables import PageTable
from multicard.results.limits import lines, read_machine
from multicard.runs.environment import machine_facts, profiler_in_words
from multicard.runs.record import Hardware, RunRecord

Facts = Mapping[str, str]


class SharedFacts(NamedTuple):
    """Facts that several runs have in common, and the number of these runs."""

    facts: Facts
    runs: int


@dataclass(frozen=True)
class Environment:
    """Facts about runs, each with the number of runs that it applies to, the most frequent first."""

    machines: list[SharedFacts]
    versions: list[SharedFacts]
    variables: list[SharedFacts]  # environment variables that may change results
    profilers: list[tuple[str, int]]  # words, and the number of runs
    first_started: str  # time of the first run, in UTC as ISO 8601; empty if none is recorded

    @property
    def mixed(self) -> str | None:
        """The differences between the runs, such as "2 machines and 3 sets of versions"; None if there are none."""
        counts = {
            "machines": len(self.machines),
            "sets of versions": len(self.versions),
            "sets of environment variables": len(self.variables),
        }
        return listed([f"{count} {name}" for name, count in counts.items() if count > 1]) or None


@dataclass(frozen=True)
class MachineLimits:
    """The measured limits of a machine as the page shows them. Made by `machine_limits`."""

    name: str
    facts: Facts
    table: PageTable
    notes: Sequence[str]  # what may have disturbed the measurements, without full stops


def environment(records: Sequence[RunRecord]) -> Environment:
    """Count the machines, versions, variables and profilers that records of runs state."""
    return Environment(
        machines=_shared(_machine_of_each(records)),
        versions=_shared(record.versions for record in records),
        variables=_shared(_variables(record) for record in records),
        profilers=Counter(map(profiler_in_words, records)).most_common(),
        first_started=min((record.started for record in records if record.started), default=""),
    )


def _machine_of_each(records: Sequence[RunRecord]) -> list[Facts]:
    """Return the facts of a machine for each record, so that they can be counted; not in the order of the records.

    A job may be given only some GPUs and CPUs of its machine. All records of one machine get the facts of the job that
    was given most.
    """
    facts: list[Facts] = []
    for records_on_machine in grouped(records, _machine_key).values():
        largest = max(records_on_machine, key=_part_of_machine)
        facts += [machine_facts(largest.host, largest.hardware)] * len(records_on_machine)
    return facts


def _machine_key(record: RunRecord) -> str:
    """Return a key that is equal for all jobs on one machine, however many GPUs and CPUs each was given."""
    hardware = record.hardware or Hardware()
    gpu_names = sorted({str(gpu.name) for gpu in hardware.gpus})
    host = record.host.model_dump() if record.host else None
    return json.dumps([host, hardware.processor, hardware.logical_cpus, hardware.memory_bytes, gpu_names])


def _part_of_machine(record: RunRecord) -> tuple[int, int]:
    """Return how many GPUs and how many CPUs a job was given, each 0 if that was not recorded."""
    hardware = record.hardware or Hardware()
    return len(hardware.gpus), hardware.usable_cpus or 0


def _variables(record: RunRecord) -> Facts | None:
    """Return the variables that may change results; None if they were not recorded."""
    # A run that had none of these variables counts, too, as a fact of its own.
    return {"Set": "none"} if record.variables == {} else record.variables


def _shared(facts_of_runs: Iterable[Mapping[str, str | None] | None]) -> list[SharedFacts]:
    """Return each combination of facts once, with its number of runs, the most frequent first.

    Runs without facts, None or empty, do not count.
    """
    texts: Counter[str] = Counter()
    for facts in facts_of_runs:
        if facts:
            texts[json.dumps({str(name): str(value or "none") for name, value in facts.items()})] += 1
    return [SharedFacts(json.loads(text), runs) for text, runs in texts.most_common()]


def machine_limits(path: Path) -> MachineLimits:
    """Return what the page shows of a record of a machine's limits; raise `UserError` if the file is damaged."""
    limits = read_machine(path)
    host = (limits.host.name if limits.host else None) or "unknown host"
    devices = "GPUs" if limits.device == "cuda" else "CPUs"
    versions = ", ".join(f"{name} {version}" for name, version in (limits.versions or {}).items() if version)
    facts = machine_facts(limits.host, limits.hardware)
    rows = [[line.what, line.conditions, line.rate, line.spread] for line in lines(limits)]
    return MachineLimits(
        name=f"{host}, {devices}",
        facts={**facts, "Measured": str(limits.started), "Versions": versions},
        table=PageTable(["Limit", "Of", "Mean", "95% CI"], [False, False, True, True], rows),
        notes=limits.notes,
    )
