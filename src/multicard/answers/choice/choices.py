"""The table of choices: how fast a training is in each configuration, and which of them is shown to be slower.

A table is about one job on one kind of machine with the same versions, and has a row for each configuration.
Configurations are compared if they run on the same number of devices and learn the same from a sample
(`Comparison.learning`). Another batch, precision, learning rate or technique makes another training: whether to change
these is for the user to decide. How much faster a job is on more devices is computed by `scaling.speedup`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import peak_memory
from multicard.answers.choice.choice import Choice
from multicard.answers.choice.families import compared, ordered
from multicard.answers.choice.learning import learning_of, words_of
from multicard.answers.pools import pool_of_rates
from multicard.answers.scaling.speedup import SCALE, Speedup, speedups_of
from multicard.config.experiment import configuration_key
from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.core.values import Row
from multicard.results.configuration import DEVICE_WORDS, OBSERVATION, Configuration, observed_once
from multicard.results.results import Results
from multicard.stats.interval import interval_columns
from multicard.stats.pool import Pool

# Parameters that only decide how long a run is, its random numbers, and how it is observed. Configurations that differ
# in nothing else are the same choice.
NO_CHOICE = ("epochs", "steps_per_epoch", "steps", "warmup_steps", "seed", *OBSERVATION)

ANY_WORK = 1e6  # samples or tokens that a training is assumed to take if its length is not known


class Job(NamedTuple):
    """What is trained, and on which kind of device."""

    workload: str
    name: str
    device: str


class _Place(NamedTuple):
    """The kind of machine and the versions that a job was measured with; an empty text if not recorded."""

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
    # Samples or tokens of the whole training: those of an epoch, times the largest number of epochs of any
    # configuration. `ANY_WORK` if no run shows the work of an epoch.
    work: float
    # In the order of `families.ordered`. A configuration whose throughput is not known has no row. Of configurations
    # that differ in `NO_CHOICE` alone, one has a row.
    rows: list[Choice]
    configurations: tuple[Configuration, ...] = ()  # those with a completed run
    lost: tuple[Configuration, ...] = ()  # those without one
    # Those of other jobs that were measured there with a completed run. They show how much the scenarios scatter that
    # they share with this job.
    others: tuple[Configuration, ...] = ()

    @cached_property
    def recipe_names(self) -> tuple[str, ...]:
        """Parameters in which choices of one family differ from each other, over all families."""
        names: dict[str, None] = {}
        for family in grouped(self.rows, lambda row: row.family).values():
            names |= dict.fromkeys(self.differing([row.configuration for row in family]))
        return tuple(names)

    def recipe(self, row: Choice) -> str:
        """Return the values that a choice has for `recipe_names`, in words; empty if there are no such parameters."""
        return row.configuration.naming(self.recipe_names)

    def setting(self, configuration: Configuration) -> str:
        """Return the values in which a configuration differs from others of the job, besides `SCALE`, in words."""
        names = [name for name in self.differing(self.configurations) if name not in SCALE]
        return configuration.naming(names)

    @staticmethod
    def differing(configurations: Sequence[Configuration]) -> list[str]:
        """Return the parameters outside of `NO_CHOICE` that have several values (`Program.varying`)."""
        table = pd.DataFrame([configuration.parameters for configuration in configurations])
        names = [name for name in configurations[0].parameters if name not in NO_CHOICE]
        return configurations[0].program.varying(table, names)

    def on(self, devices: int) -> str:
        """Return a number of devices in words, such as "2 GPUs"."""
        return counted(devices, DEVICE_WORDS[self.device])

    @cached_property
    def rates(self) -> Pool:
        """The throughputs of the configurations with a completed run by their keys."""
        return pool_of_rates(self.configurations, self.others)

    @cached_property
    def speedups(self) -> list[Speedup]:
        """The speed-up of each configuration with a completed run, in their order."""
        return speedups_of(self.configurations, self.others)

    @property
    def fastest(self) -> Choice | None:
        """The fastest choice that trains like the reference; None without rows."""
        alike = [row for row in self.rows if row.trains_like_reference]
        return min(alike, key=lambda row: row.time_s.value, default=None)


def choices(results: Results) -> list[Choices]:
    """Return a table of choices for each job and each kind of machine and versions that it was measured with.

    A job without a completed run has one table, without rows.
    """
    completed = [configuration for configuration in results.configurations() if configuration.completed]
    lost = [configuration for configuration in results.configurations() if not configuration.completed]
    measured = grouped(completed, lambda configuration: (_job(configuration), _place(configuration)))
    lost_of_job = grouped(lost, _job)
    tables = []
    for job, place in sorted(measured):
        # A run that was killed may have left no record of its machine. It counts as lost on every machine of the job.
        lost_there = [
            configuration
            for configuration in lost_of_job.get(job, [])
            if configuration.provenance.kind in (None, place.machine)
        ]
        others = [
            configuration
            for (other_job, other_place), configurations in measured.items()
            if other_job != job and other_place == place
            for configuration in configurations
        ]
        tables.append(_table(job, place, measured[job, place], lost_there, others))
    measured_jobs = {job for job, _ in measured}
    for job, configurations in lost_of_job.items():
        if job not in measured_jobs:
            tables.append(_table_without_rows(job, configurations))
    return tables


def as_table(tables: Sequence[Choices]) -> pd.DataFrame:
    """Return one row per choice, then one per configuration without a completed run; unknown values are empty."""
    rows = [_cells(table, choice) for table in tables for choice in table.rows]
    rows += [
        _job_cells(table, configuration) | {"repeats": 0, "not_worse": False, "lost": outcomes_of(configuration)}
        for table in tables
        for configuration in table.lost
    ]
    return pd.DataFrame(rows)


def outcomes_of(configuration: Configuration) -> str:
    """Return in words how the runs of a configuration ended, such as "out of memory in 2 of 2 runs"."""
    outcomes = Counter(run.values["outcome"].replace("_", " ") for run in configuration.runs)
    runs = counted(len(configuration.runs), "run")
    return ", ".join(f"{outcome} in {count} of {runs}" for outcome, count in outcomes.items())


def _cells(table: Choices, choice: Choice) -> Row:
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


def _job_cells(table: Choices, configuration: Configuration) -> Row:
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
    program = configuration.program
    return Job(program.name, program.comparison.job(configuration.parameters), configuration["device"])


def _place(configuration: Configuration) -> _Place:
    return _Place(configuration.provenance.kind or "", configuration.provenance.software or "")


def _table(
    job: Job,
    place: _Place,
    configurations: list[Configuration],
    lost: list[Configuration],
    others: list[Configuration],
) -> Choices:
    """Return the table of a job in one place: `configurations` have a completed run, `lost` have none.

    `others`: configurations of other jobs there.
    """
    rated = [configuration for configuration in configurations if _has_rates(configuration)]
    work = _work_of_training(configurations, rated)
    rows = _measured(_without_observation(rated), configurations, others, work)
    return Choices(
        job=job.name,
        device=job.device,
        machine=place.machine or None,
        versions=place.versions or None,
        unit=configurations[0].program.unit.name,
        work=work,
        rows=compared(ordered(rows), others),
        configurations=tuple(configurations),
        lost=tuple(lost),
        others=tuple(others),
    )


def _table_without_rows(job: Job, lost: list[Configuration]) -> Choices:
    return Choices(
        job=job.name,
        device=job.device,
        machine=None,
        versions=None,
        unit=lost[0].program.unit.name,
        work=ANY_WORK,
        rows=[],
        lost=tuple(lost),
    )


def _has_rates(configuration: Configuration) -> bool:
    rates = configuration.values(configuration.rate)
    return bool(rates) and min(rates) > 0


def _work_of_training(configurations: Sequence[Configuration], rated: Sequence[Configuration]) -> float:
    """Return the samples or tokens of the whole training; `ANY_WORK` if no run shows those of an epoch.

    They are those of an epoch (the median over the runs of `rated`), times the largest number of epochs that any of the
    `configurations` states. A configuration that states none has one epoch.
    """
    work_of_epochs = []
    for configuration in rated:
        for run in configuration.completed:
            rate, epoch_s = run.number(configuration.rate), run.number("estimated_epoch_time_s")
            if rate and epoch_s:
                work_of_epochs.append(rate * epoch_s)
    if not work_of_epochs:
        return ANY_WORK
    return max(configuration["epochs"] or 1 for configuration in configurations) * median(work_of_epochs)


def _without_observation(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return one of the configurations that differ in `NO_CHOICE` alone: the one with a rate in the most repeats."""
    return observed_once(
        configurations,
        job=lambda configuration: configuration_key(configuration.parameters, (*NO_CHOICE, "repeat")),
        block_count=lambda configuration: len(configuration.values(configuration.rate)),
    )


def _measured(
    candidates: Sequence[Configuration],
    baselines: Sequence[Configuration],
    others: Sequence[Configuration],
    work: float,
) -> list[Choice]:
    """Return a choice for each candidate, without the fields that compare it with other choices.

    `baselines`: the configurations among which the baseline of each speed-up is looked for, candidates included.
    `others`: those of other jobs. `work`: samples or tokens of the whole training.
    """
    speedups = {speedup.configuration.key: speedup.mean for speedup in speedups_of(baselines, others)}
    learnings = learning_of(candidates)
    pool = pool_of_rates(candidates, others)
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
