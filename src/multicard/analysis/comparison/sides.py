"""Sets of results to compare: the records of their runs, and the runs by configuration.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.analysis.runs.measures import measure_run
from multicard.analysis.scaling.speedup import RATES, speedups_of
from multicard.experiment.config import configuration_key
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.results.run_files import RunFiles
from multicard.results.tables import known_values
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
    rows: list[dict[str, Any]] = []
    records: dict[str, RunRecord] = {}
    for files in map(RunFiles, folders):
        measures = measure_run(files)
        parameters = as_columns(files.record.parameters.model_dump(mode="json"))
        records[measures["run"]] = files.record
        rows.append(known_values(parameters) | known_values(measures))
    # Without provenances all runs of a configuration are together, whatever they ran on.
    results = _with_speedups(Results(pd.DataFrame(rows)))
    configurations: dict[Hashable, Configuration] = {}
    for configuration in results.configurations():
        configurations[configuration_key(configuration.parameters)] = configuration
    return Side(records, configurations)


def _with_speedups(results: Results) -> Results:
    """Add the speed-up of each completed run on several devices to its measures."""
    speedups = {
        run.run: speedup.of_repeat(run.repeat)
        for speedup in speedups_of(results.configurations())
        if speedup.configuration["devices"] > 1
        for run in speedup.configuration.completed
    }
    return results.with_columns(speedup=results.measures["run"].map(speedups))


def name_of(configuration: Configuration) -> str:
    """Return the id of its runs, without the repeat."""
    return REPEAT.sub("", configuration.runs[0].run)
