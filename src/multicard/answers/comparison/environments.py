"""Differences between the machines, versions, variables and data of two sets of runs."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from multicard.runs.environment import NOT_RECORDED, SHOWN_DIGITS, gpu_in_words
from multicard.runs.record import Hardware, Host, ListedFile, RunRecord

# Names of the facts that identify a machine.
MACHINE, DIGEST = "machine", "digest of the machine"
# Number of digits of a machine's digest that are shown and compared.
SHOWN = 8
# Names of the facts about hardware, which decide how fast runs are.
HARDWARE = ("processor", "logical_cpus", "usable_cpus", "GPUs", "number of GPUs")


class EnvironmentDifference(NamedTuple):
    """A fact whose values in two sets of runs, a and b, differ. A set without a value has `NOT_RECORDED`."""

    fact: str
    a: str
    b: str

    @property
    def is_of_hardware(self) -> bool:
        """True if the fact is about hardware."""
        return self.fact in HARDWARE

    @property
    def is_recorded(self) -> bool:
        """True if both sets have values."""
        return NOT_RECORDED not in (self.a, self.b)


def environment_differences(
    a: Sequence[RunRecord], b: Sequence[RunRecord], by_name: bool = True
) -> list[EnvironmentDifference]:
    """Return what differs between the machines, versions, variables and data of two sets of records.

    `by_name`: False if the names of machines cannot be compared, because archives replace them. Digests of machines are
    reported only if no difference of names is, and if both sets have digests.
    """
    set_variables: set[str] = set()
    for record in (*a, *b):
        set_variables.update(record.variables or {})
    variables = sorted(set_variables)
    facts_a = _facts(a, variables)
    facts_b = _facts(b, variables)
    differences = []
    for fact in dict.fromkeys((*facts_a, *facts_b)):
        value_a = facts_a.get(fact, NOT_RECORDED)
        value_b = facts_b.get(fact, NOT_RECORDED)
        is_compared = by_name or fact != MACHINE
        if is_compared and value_a != value_b:
            differences.append(EnvironmentDifference(fact, value_a, value_b))
    is_named = any(difference.fact == MACHINE for difference in differences)

    def is_shown(difference: EnvironmentDifference) -> bool:
        return difference.fact != DIGEST or (difference.is_recorded and not is_named)

    return [difference for difference in differences if is_shown(difference)]


def _facts(records: Sequence[RunRecord], variables: Sequence[str]) -> dict[str, str]:
    """Return the facts of all runs by name: the distinct values of each, sorted and joined by commas.

    `variables`: names of environment variables, which may be set in some of the runs only.
    """
    values: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for name, value in _facts_of(record, variables):
            if value is not None:
                values[name].add(str(value))
    facts = {}
    for name, distinct in values.items():
        # A recorded text may be empty.
        facts[name] = ", ".join(sorted(distinct)) or NOT_RECORDED
    return facts


def _facts_of(record: RunRecord, variables: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield names and values of the facts of one run; a fact that was not recorded is None."""
    yield from _machine_facts(record.host or Host(), record.hardware or Hardware())
    for name, version in (record.versions or {}).items():
        yield f"version of {name}", version
    if record.variables is not None:
        for name in variables:
            yield f"variable {name}", record.variables.get(name, "not set")
    yield "profiler", record.profiler.used
    script = record.script
    if script is not None and script.sha256:
        yield f"script {script.file}", script.sha256[:SHOWN_DIGITS]
    data = record.data
    if data is not None:
        yield f"data {data.dataset}", _checksums(data.files)
    model = record.model
    if model is not None:
        yield f"model {model.model}", _checksums(model.files)


def _machine_facts(host: Host, hardware: Hardware) -> Iterator[tuple[str, object]]:
    yield MACHINE, host.name
    digest = host.machine_digest or ""
    yield DIGEST, digest[:SHOWN] or None
    yield "system", host.system
    for name in ("processor", "logical_cpus", "usable_cpus", "memory_bytes"):
        yield name, getattr(hardware, name)
    for gpu in hardware.gpus:
        yield "GPUs", gpu_in_words(gpu)
    yield "number of GPUs", len(hardware.gpus) or None


def _checksums(files: Sequence[ListedFile]) -> str | None:
    checksums = [file.sha256 or "" for file in files]
    return " ".join(checksum[:SHOWN_DIGITS] for checksum in checksums) or None
