"""The table of choices: how fast a training is in each configuration, and which of them is shown to be slower.

A row is a configuration of a job on one kind of machine with the same versions. Configurations are compared where they
have as many devices and learn the same from a sample (`Workload.learning`); a batch, a precision, a learning rate or a
technique is another choice, which is the user's. How much faster more devices are is `scaling.speedup`'s to say.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any

import pandas as pd

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.learning import Changes, Learning, changes_from, key_of, learnings, words_of
from multicard.analysis.evidence import DEVICE_WORDS, OBSERVATION, Configuration, Evidence, observed_once
from multicard.analysis.scaling.speedup import speedups_of
from multicard.core.text import counted
from multicard.experiment.config import configuration_key
from multicard.experiment.workload import BATCH
from multicard.stats.interval import Interval, interval_columns, verdict
from multicard.stats.pool import Pool

# How long a run is and how it is observed: not a choice between configurations.
NO_CHOICE = ("epochs", "steps_per_epoch", "steps", "warmup_steps", "seed", *OBSERVATION)

HOUR_S = 3600
ANY_WORK = 1e6  # samples of a training whose length is not known


@dataclass(frozen=True)
class Choice:
    """A training in one configuration, by its measured throughput (`rate`, units of work per second).

    Intervals are of 95%, by the scatter of all configurations of the job; no bounds for one repeat. `time_s` is of the
    whole training; `speedup` is over one device, None without one; `ratio` is over the fastest of `rivals`,
    with a p-value that allows for that having been chosen; `gain` is over the fastest `is_alike`, `instead_of`.
    """

    configuration: Configuration
    learning: Learning
    rate: Interval
    time_s: Interval
    speedup: Interval | None
    memory_bytes: float | None
    changes: Changes = field(default_factory=dict)
    ratio: Interval | None = None
    is_worse: bool = False
    rivals: int = 0
    gain: Interval | None = None
    instead_of: Learning | None = None

    @property
    def is_alike(self) -> bool:
        """Whether it learns as the reference does, at most with a batch that grows with the devices."""
        return set(self.changes) <= {BATCH}

    @property
    def devices(self) -> int:
        """Number of GPUs, or of CPU processes."""
        return self.configuration["devices"]

    @property
    def device_hours(self) -> float:
        """Hours of all devices together."""
        return self.time_s.value * self.devices / HOUR_S


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
    # Those of the reference learning first, the one that was measured on most numbers of devices; then by devices and
    # time. A configuration whose throughput is not known has none.
    rows: list[Choice]
    configurations: tuple[Configuration, ...] = ()  # all of which a run completed
    lost: tuple[Configuration, ...] = ()  # those of which no run completed

    @cached_property
    def recipe_names(self) -> tuple[str, ...]:
        """Parameters in which configurations of the same training on as many devices differ."""
        alike = _together(self.rows, lambda each: (key_of(each.learning), each.devices)).values()
        return tuple(dict.fromkeys(name for own in alike for name in _differing([each.configuration for each in own])))

    def recipe(self, row: Choice) -> str:
        """What a configuration does otherwise than its rivals; empty where nothing differs."""
        return row.configuration.naming(self.recipe_names)

    def on(self, devices: int) -> str:
        """A number of devices in words."""
        return counted(devices, DEVICE_WORDS[self.device])

    @property
    def fastest(self) -> Choice | None:
        """Of those that learn as the reference does."""
        return min((each for each in self.rows if each.is_alike), key=lambda each: each.time_s.value, default=None)


def choices(evidence: Evidence) -> list[Choices]:
    """Give the table of choices of each job; of a job of which no run completed one without rows."""
    found = evidence.configurations
    completed, lost = ([each for each in found if bool(each.completed) is ended] for ended in (True, False))
    jobs = _together(completed, lambda each: (*_job(each), each.provenance.kind or "", each.provenance.software or ""))
    lost_of = _together(lost, _job)
    tables = []
    for (name, job, device, machine, versions), alike in sorted(jobs.items(), key=lambda entry: entry[0]):
        # A run that was killed may have left no record of its machine.
        own = [each for each in lost_of.get((name, job, device), []) if each.provenance.kind in (None, machine)]
        tables.append(_choices((job, device, machine or None, versions or None), alike, own))
    for key in lost_of.keys() - {key[:3] for key in jobs}:
        own = lost_of[key]
        tables.append(Choices(*key[1:], None, None, own[0].workload.unit.name, ANY_WORK, [], lost=tuple(own)))
    return tables


def as_table(found: Sequence[Choices]) -> pd.DataFrame:
    """One row per choice, then those that never completed; what was not recorded is empty."""
    rows = [
        _where(job, each.configuration)
        | {"recipe": job.recipe(each), "learning": words_of(each.learning), "changes": words_of(each.changes)}
        | {"repeats": each.rate.repeats}
        | interval_columns("throughput_per_s", each.rate)
        | interval_columns("speedup", each.speedup)
        | interval_columns("time_s", each.time_s)
        | {"device_hours": each.device_hours, "peak_memory_bytes": each.memory_bytes}
        | {"not_worse": not each.is_worse, "lost": None}
        for job in found
        for each in job.rows
    ]
    rows += [
        _where(job, each) | {"repeats": 0, "not_worse": False, "lost": outcomes_of(each)}
        for job in found
        for each in job.lost
    ]
    return pd.DataFrame(rows)


def outcomes_of(configuration: Configuration) -> str:
    """How the runs of a configuration ended of which none completed."""
    outcomes = Counter(run.values["outcome"].replace("_", " ") for run in configuration.runs)
    runs = counted(len(configuration.runs), "run")
    return ", ".join(f"{each} in {count} of {runs}" for each, count in outcomes.items())


def _where(job: Choices, configuration: Configuration) -> dict[str, Any]:
    return {
        "job": job.job, "machine": job.machine, "versions": job.versions, "device": job.device,
        "devices": configuration["devices"], "configuration": configuration.words(), "unit": job.unit,
    }  # fmt: skip


def _differing(configurations: Sequence[Configuration]) -> list[str]:
    """Parameters with more than one value that are a choice."""
    table = pd.DataFrame([configuration.parameters for configuration in configurations])
    names = [name for name in configurations[0].parameters if name not in NO_CHOICE]
    return configurations[0].workload.varying(table, names)


def _together(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for each in items:
        groups[key(each)].append(each)
    return groups


def _job(configuration: Configuration) -> tuple[str, str, str]:
    work = configuration.workload
    return work.name, work.job(configuration.parameters), configuration["device"]


def _choices(
    where: tuple[str, str, str | None, str | None],
    alike: list[Configuration],
    lost: list[Configuration],
) -> Choices:
    speedups = {id(each.configuration): each.over_blocks for each in speedups_of(alike)}
    rated = [each for each in alike if (rates := each.values(each.rate)) and min(rates) > 0]
    passes = [
        rate * seconds
        for each in rated
        for run in each.completed
        if (rate := run.number(each.rate)) and (seconds := run.number("estimated_epoch_time_s"))
    ]
    work = max(each["epochs"] or 1 for each in alike) * median(passes) if passes else ANY_WORK
    # One of the configurations that differ only in what is no choice.
    jobs = [configuration_key(each.parameters, (*NO_CHOICE, "repeat")) for each in rated]
    once = observed_once(jobs, [len(each.values(each.rate)) for each in rated])
    candidates = [rated[index] for index in once]
    pool = Pool([each.blocks(each.rate) for each in candidates])
    rows = []
    for index, (each, learning) in enumerate(zip(candidates, learnings(candidates), strict=True)):
        rate = pool.mean(index)
        if rate is None:
            continue
        time_s = rate.map(lambda per_s: work / per_s)
        rows.append(Choice(each, learning, rate, time_s, speedups[id(each)], peak_memory(each)))
    compared = _compared(_ordered(rows))
    return Choices(*where, alike[0].workload.unit.name, work, compared, tuple(alike), tuple(lost))


def _ordered(rows: list[Choice]) -> list[Choice]:
    """Rows with what they change; those of the reference learning first, then by devices and time."""
    groups = _together(rows, lambda each: key_of(each.learning))
    besides_batch = _together(rows, _besides_batch)  # which weak scaling changes

    def rank(own: list[Choice]) -> tuple[int, ...]:
        family = besides_batch[_besides_batch(own[0])]
        counts, of_family = ({each.devices for each in rows} for rows in (own, family))
        return -len(counts), -len(of_family), min(counts), -len(own)

    ranked = sorted(groups.values(), key=rank)
    if not ranked:
        return []
    reference = ranked[0][0].learning
    ranked[1:] = sorted(ranked[1:], key=lambda own: len(changes_from(reference, own[0].learning)))
    return [
        replace(each, changes=changes_from(reference, each.learning))
        for group in ranked
        for each in sorted(group, key=lambda one: (one.devices, one.time_s.value))
    ]


def _besides_batch(row: Choice) -> tuple[Any, ...]:
    return key_of({name: value for name, value in row.learning.items() if name != BATCH})


def _compared(rows: list[Choice]) -> list[Choice]:
    """Rows with how each compares with the fastest of the same training on as many devices."""
    pool = Pool([each.configuration.blocks(each.configuration.rate) for each in rows])
    found = list(rows)
    for own in _together(range(len(rows)), lambda index: rows[index].devices).values():
        bests = []
        for rivals in _together(own, lambda index: key_of(rows[index].learning)).values():
            best = max(rivals, key=lambda index: rows[index].rate.value)
            bests.append(best)
            others = [index for index in rivals if index != best]
            found[best] = replace(found[best], rivals=len(rivals))
            for index, ratio in zip(others, pool.against_best(best, others), strict=True):
                found[index] = replace(found[index], ratio=ratio, is_worse=verdict(ratio) == "less", rivals=len(rivals))
        reference = next((index for index in bests if rows[index].is_alike), None)
        changed = [index for index in bests if index != reference]
        if reference is not None:
            for index, gain in zip(changed, pool.against_best(reference, changed, among=len(own)), strict=True):
                found[index] = replace(found[index], gain=gain, instead_of=rows[reference].learning)
    return found
