"""Sets of results to compare: the records of their runs, and the runs by configuration.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun, Provenance
from multicard.analysis.runs.measures import measure_run
from multicard.analysis.runs.notices import without_empty
from multicard.analysis.runs.run_files import RunFiles
from multicard.analysis.scaling.speedup import RATES, speedups_of
from multicard.experiment.config import configuration_key
from multicard.runs.parameters import as_columns
from multicard.runs.record import RunRecord

# Measures that are compared. A configuration without any of them was not measured.
COLUMNS = (
    "iteration_time_s", *RATES, "speedup", "peak_memory_bytes", "energy_per_sample_j", "energy_per_token_j",
    "test_accuracy", "test_loss", "loss_at_end",
)  # fmt: skip
# The part of a run's id that numbers its repeat.
REPEAT = re.compile(r"_r\d+(?=$|_[0-9a-f]{12}$)")


@dataclass(frozen=True)
class Side:
    """One set of results: the record of each run by its id, and each configuration by its key.

    Keys are those of `configuration_key`, without machine and versions, so that both sides have the same ones. A
    configuration has runs on any machine with any versions, whose differences are reported beside the changes.
    """

    records: dict[str, RunRecord]
    configurations: dict[Hashable, Configuration]


def read_side(folders: Sequence[Path]) -> Side:
    """Measure one set of run directories.

    Raises `UserError` if a file of a run is missing or damaged.
    """
    values: dict[str, dict[str, Any]] = {}
    records: dict[str, RunRecord] = {}
    for files in map(RunFiles, folders):
        measures = measure_run(files)
        parameters = as_columns(files.record.parameters.model_dump(mode="json"))
        run = measures["run"]
        records[run] = files.record
        values[run] = without_empty(parameters) | without_empty(measures)
    # Without a provenance all runs of a configuration are together, whatever they ran on.
    evidence = Evidence([MeasuredRun(run, measured, Provenance()) for run, measured in values.items()])
    _add_speedups(evidence, values)
    configurations: dict[Hashable, Configuration] = {}
    for configuration in evidence.configurations:
        configurations[configuration_key(configuration.parameters)] = configuration
    return Side(records, configurations)


def _add_speedups(evidence: Evidence, values: dict[str, dict[str, Any]]) -> None:
    """Add the speed-up of each completed run on several devices to its values, which `evidence` shares."""
    for speedup in speedups_of(evidence.configurations):
        if speedup.configuration["devices"] > 1:
            for run in speedup.configuration.completed:
                values[run.run]["speedup"] = speedup.of_repeat(run.repeat)


def name_of(configuration: Configuration) -> str:
    """Return the id of its runs, without the repeat."""
    return REPEAT.sub("", configuration.runs[0].run)
