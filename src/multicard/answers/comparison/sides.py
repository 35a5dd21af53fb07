"""Sets of results to compare: the records of their runs, and the runs by configuration.

A configuration is what its runs share: all parameters but the repeat.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from multicard.answers.scaling.speedup import RATES, speedups_of
from multicard.config.experiment import configuration_key
from multicard.core.values import Row
from multicard.results.configuration import Configuration
from multicard.results.measure import measure_run
from multicard.results.results import Results
from multicard.results.run_files import RunFiles
from multicard.results.tables import known_values
from multicard.runs.parameters import as_columns
from multicard.runs.record import RunRecord

# Columns of measures that are compared. A configuration without a number in any of them was not measured.
COLUMNS = (
    "iteration_time_s", *RATES, "speedup", "peak_memory_bytes", "energy_per_sample_j", "energy_per_token_j",
    "test_accuracy", "test_loss", "loss_at_end",
)  # fmt: skip
# The part of a run's id that numbers its repeat.
REPEAT = re.compile(r"_r\d+(?=$|_[0-9a-f]{12}$)")


@dataclass(frozen=True)
class Side:
    """One set of results: the record of each run by its id, and each configuration by its key.

    Keys are made by `configuration_key` from parameters alone, so a configuration has the same key on both sides. Its
    runs may be on any machines with any versions. Differences between these are reported together with the changes.
    """

    records: dict[str, RunRecord]
    configurations: dict[Hashable, Configuration]


def read_side(folders: Sequence[Path], looks: Mapping[str, int] = MappingProxyType({})) -> Side:
    """Read a set of run directories, and compute the measures of each run.

    `looks`: by run how often the results were looked at while repeats were added (`stats.looks`); once if it is not
    stated.

    Raises `UserError` if a file of a run is missing or damaged.
    """
    rows: list[Row] = []
    records: dict[str, RunRecord] = {}
    for files in map(RunFiles, folders):
        measures = measure_run(files)
        parameters = as_columns(files.record.parameters.model_dump(mode="json"))
        records[files.record.run] = files.record
        rows.append(known_values(parameters) | known_values(measures))
    # These results have no provenances, so runs on different machines belong to the same configuration.
    results = _with_speedups(Results(pd.DataFrame(rows), stated_looks=looks))
    configurations: dict[Hashable, Configuration] = {}
    for configuration in results.configurations():
        configurations[configuration_key(configuration.parameters)] = configuration
    return Side(records, configurations)


def _with_speedups(results: Results) -> Results:
    """Add the measure `speedup`: the speed-up of each completed run on several devices, empty for other runs."""
    speedups = {
        run.run: speedup.of_repeat(run.repeat)
        for speedup in speedups_of(results.configurations())
        if speedup.configuration["devices"] > 1
        for run in speedup.configuration.completed
    }
    return results.with_columns(speedup=results.measures["run"].map(speedups))


def name_of(configuration: Configuration) -> str:
    """Return the id of the first run of a configuration, without the part that numbers the repeat."""
    return REPEAT.sub("", configuration.runs[0].run)
