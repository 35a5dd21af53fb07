"""The table of choices: how fast a training is in each configuration, and which of them is shown to be slower.

A row is a configuration of a job on one kind of machine with the same versions. Configurations are compared where they
have as many devices and learn the same from a sample (`Workload.learning`); a batch, a precision, a learning rate or a
technique is another choice, which is the user's. How much faster more devices are, is a question of `scaling.speedup`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.choice import Choice
from multicard.analysis.choice.families import compared, ordered
from multicard.analysis.choice.learning import learning_of, words_of
from multicard.analysis.scaling.speedup import speedups_of
from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.experiment.config import configuration_key
from multicard.results.configuration import DEVICE_WORDS, OBSERVATION, Configuration, observed_once
from multicard.results.results import Results
from multicard.stats.interval import interval_columns
from multicard.stats.pool import Pool

# How long a run is and how it is observed: not a choice between configurations.
NO_CHOICE = ("epochs", "steps_per_epoch", "steps", "warmup_steps", "seed", *OBSERVATION)

ANY_WORK = 1e6  # samples of a training whose length is not known


class Job(NamedTuple):
    """What is trained, and on which kind of device."""

    workload: str
    name: str
    device: str


class _Place(NamedTuple):
    """Where a job was measured; empty where that is not known."""

    machine: str
    versions: str


@dataclass(frozen=True)
class Choices:
    """The configurations of one job on one kind of device and machine, with the same versions."""

    job: str
    device: str
    machine: str | None
    versions: str | None
    unit: str
    # Samples or tokens of the training: of the most epochs that ran, or `ANY_WORK` where a pass is not known.
    work: float
    # In the order of `families.ordered`. A configuration whose throughput is not known has no row.
    rows: list[Choice]
    configurations: tuple[Configuration, ...] = ()  # all of which a run completed
    lost: tuple[Configuration, ...] = ()  # those of which no run completed

    @cached_property
    def recipe_names(self) -> tuple[str, ...]:
        """Parameters in which configurations of the same training on as many devices differ."""
        names: dict[str, None] = {}
        for family in grouped(self.rows, lambda row: row.family).values():
            names |= dict.fromkeys(_differing([row.configuration for row in family]))
        return tuple(names)

    def recipe(self, row: Choice) -> str:
        """Return what a configuration does otherwise than its rivals; empty where nothing differs."""
        return row.configuration.naming(self.recipe_names)

    def on(self, devices: int) -> str:
        """Return a number of devices in words."""
        return counted(devices, DEVICE_WORDS[self.device])

    @property
    def fastest(self) -> Choice | None:
        """The fastest choice that trains like the reference; None without rows."""
        alike = [row for row in self.rows if row.trains_like_reference]
        return min(alike, key=lambda row: row.time_s.value, default=None)


def choices(results: Results) -> list[Choices]:
    """Return the table of choices of each job; of a job of which no run completed one without rows."""
    completed = [configuration for configuration in results.configurations() if configuration.completed]
    lost = [configuration for configuration in results.configurations() if not configuration.completed]
    measured = grouped(completed, lambda configuration: (_job(configuration), _place(configuration)))
    lost_of_job = grouped(lost, _job)
    tables = []
    for job, place in sorted(measured):
        # A run that was killed may have left no record of its machine.
        lost_there = [
            configuration
            for configuration in lost_of_job.get(job, [])
            if configuration.provenance.kind in (None, place.machine)
        ]
        tables.append(_table(job, place, measured[job, place], lost_there))
    measured_jobs = {job for job, _ in measured}
    for job, configurations in lost_of_job.items():
        if job not in measured_jobs:
            tables.append(_table_without_rows(job, configurations))
    return tables


def as_table(tables: Sequence[Choices]) -> pd.DataFrame:
    """Return one row per choice, then those that never completed; what was not recorded is empty."""
    rows = [_cells(table, choice) for table in tables for choice in table.rows]
    rows += [
        _job_cells(table, configuration) | {"repeats": 0, "not_worse": False, "lost": outcomes_of(configuration)}
        for table in tables
        for configuration in table.lost
    ]
    return pd.DataFrame(rows)


def outcomes_of(configuration: Configuration) -> str:
    """Return how the runs of a configuration ended of which none completed, in words."""
    outcomes = Counter(run.values["outcome"].replace("_", " ") for run in configuration.runs)
    runs = counted(len(configuration.runs), "run")
    return ", ".join(f"{outcome} in {count} of {runs}" for outcome, count in outcomes.items())


def _cells(table: Choices, choice: Choice) -> dict[str, Any]:
    return {
        **_job_cells(table, choice.configuration),
        "recipe": table.recipe(choice),
        "learning": words_of(choice.learning),
        "changes": words_of(choice.changes),
        "repeats": choice.rate.repeats,
        **interval_columns("throughput_per_s", choice.rate),
        **interval_columns("speedup", choice.speedup),
        **interval_columns("time_s", choice.time_s),
        "device_hours": choice.device_hours,
        "peak_memory_bytes": choice.memory_bytes,
        "not_worse": not choice.is_worse,
        "lost": None,
    }


def _job_cells(table: Choices, configuration: Configuration) -> dict[str, Any]:
    return {
        "job": table.job,
        "machine": table.machine,
        "versions": table.versions,
        "device": table.device,
        "devices": configuration["devices"],
        "configuration": configuration.words(),
        "unit": table.unit,
    }


def _job(configuration: Configuration) -> Job:
    workload = configuration.workload
    return Job(workload.name, workload.job(configuration.parameters), configuration["device"])


def _place(configuration: Configuration) -> _Place:
    return _Place(configuration.provenance.kind or "", configuration.provenance.software or "")


def _table(job: Job, place: _Place, configurations: list[Configuration], lost: list[Configuration]) -> Choices:
    """Return the choices between configurations of a job that completed in one place."""
    rated = [configuration for configuration in configurations if _has_rates(configuration)]
    work = _work_of_training(configurations, rated)
    rows = _measured(_without_observation(rated), configurations, work)
    return Choices(
        job=job.name,
        device=job.device,
        machine=place.machine or None,
        versions=place.versions or None,
        unit=configurations[0].workload.unit.name,
        work=work,
        rows=compared(ordered(rows)),
        configurations=tuple(configurations),
        lost=tuple(lost),
    )


def _table_without_rows(job: Job, lost: list[Configuration]) -> Choices:
    return Choices(
        job=job.name,
        device=job.device,
        machine=None,
        versions=None,
        unit=lost[0].workload.unit.name,
        work=ANY_WORK,
        rows=[],
        lost=tuple(lost),
    )


def _has_rates(configuration: Configuration) -> bool:
    rates = configuration.values(configuration.rate)
    return bool(rates) and min(rates) > 0


def _work_of_training(configurations: Sequence[Configuration], rated: Sequence[Configuration]) -> float:
    """Return the samples or tokens of a training: the most epochs that were stated, times the work of a pass."""
    passes = []
    for configuration in rated:
        for run in configuration.completed:
            rate, pass_s = run.number(configuration.rate), run.number("estimated_epoch_time_s")
            if rate and pass_s:
                passes.append(rate * pass_s)
    if not passes:
        return ANY_WORK
    return max(configuration["epochs"] or 1 for configuration in configurations) * median(passes)


def _without_observation(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return one of the configurations that differ only in what is no choice between them, as how runs are observed."""
    return observed_once(
        configurations,
        job=lambda configuration: configuration_key(configuration.parameters, (*NO_CHOICE, "repeat")),
        block_count=lambda configuration: len(configuration.values(configuration.rate)),
    )


def _measured(candidates: Sequence[Configuration], baselines: Sequence[Configuration], work: float) -> list[Choice]:
    """Return what was measured of each candidate alone; `baselines` has all configurations, candidates included."""
    speedups = {speedup.configuration.key: speedup.mean for speedup in speedups_of(baselines)}
    learnings = learning_of(candidates)
    pool = Pool({configuration.key: configuration.blocks(configuration.rate) for configuration in candidates})
    rows = []
    for configuration in candidates:
        rate = pool.mean(configuration.key)
        if rate is not None:
            rows.append(
                Choice(
                    configuration=configuration,
                    learning=learnings[configuration.key],
                    rate=rate,
                    time_s=rate.map(lambda per_s: work / per_s),
                    speedup=speedups[configuration.key],
                    memory_bytes=peak_memory(configuration),
                )
            )
    return rows


def _differing(configurations: Sequence[Configuration]) -> list[str]:
    """Return the parameters with more than one value that are a choice."""
    table = pd.DataFrame([configuration.parameters for configuration in configurations])
    names = [name for name in configurations[0].parameters if name not in NO_CHOICE]
    return configurations[0].workload.varying(table, names)
