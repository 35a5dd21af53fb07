"""Sets of results to compare: the runs of each by configuration, and what differs between the places they ran in.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun, Provenance
from multicard.analysis.runs.measures import measure_run
from multicard.analysis.runs.notices import without_empty
from multicard.analysis.runs.run_files import RunFiles
from multicard.analysis.scaling.speedup import RATES, speedups_of
from multicard.experiment.config import configuration_key
from multicard.runs.environment import SHOWN_DIGITS, gpu_in_words
from multicard.runs.parameters import as_columns
from multicard.runs.record import Hardware, Host, ListedFile, RunRecord

COLUMNS = (
    "iteration_time_s", *RATES, "speedup", "peak_memory_bytes", "energy_per_sample_j", "energy_per_token_j",
    "test_accuracy", "test_loss", "loss_at_end",
)  # fmt: skip
MACHINE, DIGEST = "machine", "digest of the machine"  # the entries of the environment that are its name and its digest
SHOWN = 8  # digits of a digest
HARDWARE = ("processor", "logical_cpus", "usable_cpus", "GPUs", "number of GPUs")  # the entries that set the speed
NOT_RECORDED = "not recorded"
REPEAT = re.compile(r"_r\d+(?=$|_[0-9a-f]{12}$)")


@dataclass(frozen=True)
class Side:
    """One set of results: the record of each run by its id, and the configurations by what tells them apart.

    These have runs on any machine with any versions, whose differences are told beside the changes.
    """

    records: dict[str, RunRecord]
    configurations: dict[Hashable, Configuration]


def read_side(folders: Sequence[Path]) -> Side:
    """Measure one set of run directories.

    Raises `UserError` if a file of a run is missing or damaged.
    """
    values, records = {}, {}
    for run in map(RunFiles, folders):
        row, stated = measure_run(run), as_columns(run.record.parameters.model_dump(mode="json"))
        records[row["run"]] = run.record
        values[row["run"]] = without_empty(stated) | without_empty(row)
    evidence = Evidence([MeasuredRun(run, measured, Provenance()) for run, measured in values.items()])
    for each in speedups_of(evidence.configurations):
        for run in each.configuration.completed if each.configuration["devices"] > 1 else ():
            values[run.run]["speedup"] = each.of_repeat(run.repeat)
    return Side(records, {configuration_key(each.parameters): each for each in evidence.configurations})


def name_of(configuration: Configuration) -> str:
    """Id of its runs, less the repeat."""
    return REPEAT.sub("", configuration.runs[0].run)


def environment_differences(
    a: Sequence[RunRecord], b: Sequence[RunRecord], by_name: bool = True
) -> list[tuple[str, str, str]]:
    """Return what differs between the machines, versions, variables and data of two sets of records.

    Each row has what it is, and the values of both. `by_name`: whether the names of machines can be compared, which
    archives replace. The digests of machines are told where the names are equal or do not count.
    """
    variables = sorted({name for record in [*a, *b] for name in record.variables or {}})
    sides = [_facts(records, variables) for records in (a, b)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [(name, *(", ".join(sorted(side.get(name, ()))) or NOT_RECORDED for side in sides)) for name in names]
    differences = [(name, before, after) for name, before, after in rows if before != after]
    if not by_name:
        differences = [row for row in differences if row[0] != MACHINE]
    is_named = any(name == MACHINE for name, _, _ in differences)
    return [row for row in differences if row[0] != DIGEST or not (is_named or NOT_RECORDED in row)]


def _facts(records: Sequence[RunRecord], variables: Sequence[str]) -> dict[str, set[str]]:
    """Where and on what the runs ran, and with which environment variables: all values of each fact."""
    facts: dict[str, set[str]] = {}
    for record in records:
        for name, value in _facts_of(record, variables):
            if value is not None:
                facts.setdefault(name, set()).add(str(value))
    return facts


def _facts_of(record: RunRecord, variables: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield names and values of the facts of one run; a fact that was not recorded is None."""
    host, hardware = record.host or Host(), record.hardware or Hardware()
    yield MACHINE, host.name
    yield DIGEST, (host.machine_digest or "")[:SHOWN] or None
    yield "system", host.system
    for name in ("processor", "logical_cpus", "usable_cpus", "memory_bytes"):
        yield name, getattr(hardware, name)
    for gpu in hardware.gpus:
        yield "GPUs", gpu_in_words(gpu)
    yield "number of GPUs", len(hardware.gpus) or None
    for name, version in (record.versions or {}).items():
        yield f"version of {name}", version
    if record.variables is not None:
        for name in variables:
            yield f"variable {name}", record.variables.get(name, "not set")
    yield "profiler", record.profiler.used
    if record.script is not None and record.script.sha256:
        yield f"script {record.script.file}", record.script.sha256[:SHOWN_DIGITS]
    if record.data is not None:
        yield f"data {record.data.dataset}", _checksums(record.data.files)
    if record.model is not None:
        yield f"model {record.model.model}", _checksums(record.model.files)


def _checksums(files: Sequence[ListedFile]) -> str | None:
    return " ".join((file.sha256 or "")[:SHOWN_DIGITS] for file in files) or None
