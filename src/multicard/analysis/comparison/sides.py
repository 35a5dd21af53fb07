"""Sets of results to compare: the runs of each by configuration, and what differs between the places they ran in.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multicard.analysis.comparison.sessions import Record
from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun, Provenance
from multicard.analysis.runs.measures import measure_run
from multicard.analysis.runs.notices import without_empty
from multicard.analysis.runs.run_files import RunFiles
from multicard.analysis.scaling.speedup import RATES, speedups_of
from multicard.core.text import gpu_name
from multicard.core.units import BYTES, with_unit
from multicard.experiment.config import configuration_key
from multicard.experiment.workload import parameters_of
from multicard.runs.parameters import as_columns

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

    records: dict[str, dict[str, Any]]
    configurations: dict[Hashable, Configuration]


def read_side(folders: Sequence[Path]) -> Side:
    """Measure one set of run directories.

    Raises `UserError` if a file of a run is missing or damaged.
    """
    values, records = {}, {}
    for run in map(RunFiles, folders):
        row, stated = measure_run(run), as_columns(_stated(run.record))
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


def _stated(record: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a run, with the defaults of those that came after it was recorded."""
    try:
        return parameters_of(record["parameters"]).model_dump(mode="json")
    except ValidationError:
        return record["parameters"]


def environment_differences(
    a: Sequence[Record], b: Sequence[Record], by_name: bool = True
) -> list[tuple[str, str, str]]:
    """Return what differs between the machines, versions, variables and data of two sets of records.

    Each row has what it is, and the values of both. `by_name`: whether the names of machines can be compared, which
    archives replace. The digests of machines are told where the names are equal or do not count.
    """
    variables = sorted({name for record in [*a, *b] for name in record.get("variables") or {}})
    sides = [_facts(records, variables) for records in (a, b)]
    names = dict.fromkeys(name for side in sides for name in side)
    rows = [(name, *(", ".join(sorted(side.get(name, ()))) or NOT_RECORDED for side in sides)) for name in names]
    differences = [(name, before, after) for name, before, after in rows if before != after]
    if not by_name:
        differences = [row for row in differences if row[0] != MACHINE]
    is_named = any(name == MACHINE for name, _, _ in differences)
    return [row for row in differences if row[0] != DIGEST or not (is_named or NOT_RECORDED in row)]


def _facts(records: Sequence[Record], variables: Sequence[str]) -> dict[str, set[str]]:
    """Where and on what the runs ran, and with which environment variables: all values of each fact."""
    facts: dict[str, set[str]] = {}
    for record in records:
        host, hardware = record.get("host") or {}, record.get("hardware") or {}
        gpus, script, set_to = hardware.get("gpus") or [], record.get("script") or {}, record.get("variables")
        found = [
            (MACHINE, host.get("name")),
            (DIGEST, (host.get("machine_digest") or "")[:SHOWN] or None),
            ("system", host.get("system")),
            *((name, hardware.get(name)) for name in ("processor", "logical_cpus", "usable_cpus", "memory_bytes")),
            *(("GPUs", _gpu(each)) for each in gpus),
            ("number of GPUs", len(gpus) or None),
            *((f"version of {name}", version) for name, version in (record.get("versions") or {}).items()),
            *((f"variable {name}", set_to.get(name, "not set")) for name in variables if set_to is not None),
            ("profiler", record["profiler"]["used"]),
            (f"script {script.get('file')}", script["sha256"][:12] if script.get("sha256") else None),
        ]
        for kind, name in (("data", "dataset"), ("model", "model")):
            source = record.get(kind) or {}
            digests = [file.get("sha256", "")[:12] for file in source.get("files") or []]
            found.append((f"{kind} {source.get(name)}", " ".join(digests) or None))
        for name, value in found:
            if value is not None:
                facts.setdefault(name, set()).add(str(value))
    return facts


def _gpu(gpu: dict[str, Any]) -> str:
    memory = gpu.get("memory_bytes")
    return gpu_name(gpu.get("name")) + (f" ({with_unit(memory, BYTES)})" if memory else "")
