"""The table of choices: what a training takes in each configuration, and which of them is shown to be worse.

A row is a configuration of a job on one kind of machine with the same versions. The training is the same for all of
them: as many samples, or tokens, at the throughput that was measured. Configurations are compared where they have as
many devices and learn the same from a sample (`Workload.learning`); a batch, a precision, a learning rate or a
technique is another choice, which is the user's. How much faster more devices are is `scaling.speedup`'s to say.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any, Literal

import pandas as pd

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.demand import NO_CHOICE, VALUES, Demand, energy, judged
from multicard.analysis.choice.learning import Changes, Learning, changes_from, key_of, learnings
from multicard.analysis.choice.observation import observed_once
from multicard.analysis.evidence import Configuration, Evidence
from multicard.analysis.pooling import Pool
from multicard.analysis.scaling.speedup import speedups_between
from multicard.analysis.statistics import Interval, product_of, verdict
from multicard.experiment.config import configuration_key
from multicard.experiment.workload import BATCH

HOUR_S = 3600
ANY_WORK = 1e6  # samples of a training whose length is not known

Deadline = Literal["met", "may miss", "missed"]


@dataclass(frozen=True)
class Choice:
    """A whole training in one configuration, by its measured throughput.

    Attributes
    ----------
    learning
        What decides how much is learned from a sample.
    time_s
        Geometric mean over repeats with its 95% interval, by the scatter of all configurations of the job; no bounds
        for one repeat.
    speedup
        Over the same configuration on one device; its value is None without one.
    energy_j, memory_bytes
        None where not recorded.
    value
        Of the goal, over repeats; None where it was not measured.
    quality
        The worst accuracy, or loss, of its repeats, as the demand asks for; None where not recorded.
    refused
        Why it does not count; None where it does.
    unknown
        Whether that is because something was not recorded.
    changes
        What of its learning differs from that of the job's reference: its value there, and here.
    ratio
        The goal's value over that of the best of its rivals, whose p-value allows for the best having been chosen.
        None of the best, and of those that do not count.
    is_best
        Whether it is the best of its rivals for the goal: configurations of the same training on as many devices.
    is_worse
        Whether the best of its rivals is significantly better.
    rivals
        How many configurations were compared, itself among them.
    gain, instead_of
        The goal's value of the best of a training over that of the best on as many devices that `is_alike`, and what
        that one learns.
    """

    configuration: Configuration
    learning: Learning
    time_s: Interval
    speedup: Interval
    energy_j: float | None
    memory_bytes: float | None
    value: Interval | None = None
    quality: float | None = None
    refused: str | None = None
    unknown: bool = False
    changes: Changes = field(default_factory=dict)
    ratio: Interval | None = None
    is_best: bool = False
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

    def deadline(self, deadline_s: float) -> Deadline:
        """Whether the mean time is below a deadline, by its interval."""
        low, high = (self.time_s.value if end is None else end for end in (self.time_s.low, self.time_s.high))
        if high <= deadline_s:
            return "met"
        return "may miss" if low <= deadline_s else "missed"


@dataclass(frozen=True)
class Choices:
    """The configurations of one job on one kind of device and machine, with the same versions.

    Attributes
    ----------
    work, of_pass
        Samples or tokens of the training, and of a pass over the data as runs make it; None where not known.
    rows
        Those of the reference learning first, the one that was measured on most numbers of devices; then by devices
        and time. A configuration whose throughput is not known has none.
    configurations
        All of which a run completed.
    lost
        Those of which no run completed.
    """

    job: str
    device: str
    machine: str | None
    versions: str | None
    unit: str
    work: float
    of_pass: float | None
    length_known: bool
    rows: list[Choice]
    configurations: tuple[Configuration, ...] = ()
    lost: tuple[Configuration, ...] = ()

    @property
    def groups(self) -> list[list[Choice]]:
        """Rows by their learning, the reference first."""
        return list(_together(self.rows, lambda each: key_of(each.learning)).values())

    @cached_property
    def recipe_names(self) -> tuple[str, ...]:
        """Parameters in which configurations of the same training on as many devices differ."""
        alike = _together(self.rows, lambda each: (key_of(each.learning), each.devices)).values()
        return tuple(dict.fromkeys(name for own in alike for name in differing([each.configuration for each in own])))

    def recipe(self, row: Choice) -> str:
        """What a configuration does otherwise than its rivals; empty where nothing differs."""
        return row.configuration.naming(self.recipe_names)

    @property
    def fastest(self) -> Choice | None:
        """Of those that count and learn as the reference does."""
        rows = [each for each in self.rows if not each.refused and each.is_alike]
        return min(rows, key=lambda each: each.time_s.value, default=None)

    @staticmethod
    def are_rivals(one: Choice, other: Choice) -> bool:
        """Whether they are of the same training on as many devices."""
        return one.devices == other.devices and one.changes == other.changes

    def best_of_each_count(self, rows: Sequence[Choice]) -> list[Choice]:
        """The fastest of those that count on each number of devices, the fewest devices first."""
        own = _together([each for each in rows if not each.refused], lambda each: each.devices)
        return [min(own[count], key=lambda each: each.time_s.value) for count in sorted(own)]


def choices(evidence: Evidence, demand: Demand | None = None) -> list[Choices]:
    """Give the table of choices of each job; of a job of which no run completed one without rows."""
    demand = demand or Demand()
    found = evidence.configurations
    speedups = {id(each): one.over_blocks for each, one in zip(found, speedups_between(found), strict=True)}
    jobs = _together(
        [each for each in found if each.completed],
        lambda each: (*_job(each), each.provenance.kind or "", each.provenance.software or ""),
    )
    lost = [each for each in found if not each.completed]
    tables = []
    for (name, job, device, machine, versions), alike in sorted(jobs.items(), key=lambda entry: entry[0]):
        own = _lost([each for each in lost if _job(each) == (name, job, device)], alike)
        tables.append(_choices((job, device, machine or None, versions or None), alike, own, demand, speedups))
    done = {key[:3] for key in jobs}
    for (_, job, device), alike in _together([each for each in lost if _job(each) not in done], _job).items():
        tables.append(
            Choices(job, device, None, None, alike[0].workload.unit.name, ANY_WORK, None, False, [], (), tuple(alike))
        )
    return tables


def differing(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Parameters with more than one value that are a choice."""
    table = pd.DataFrame([configuration.parameters for configuration in configurations])
    names = [name for name in configurations[0].parameters if name not in NO_CHOICE]
    return tuple(configurations[0].workload.varying(table, names))


def _together(items: Iterable[Any], key: Any) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = defaultdict(list)
    for each in items:
        groups[key(each)].append(each)
    return groups


def _job(configuration: Configuration) -> tuple[str, str, str]:
    work = configuration.workload
    return work.name, work.job(configuration.parameters), configuration["device"]


def _lost(candidates: list[Configuration], alike: list[Configuration]) -> tuple[Configuration, ...]:
    """Those that never completed, longer or shorter, where others did: there, or where their record does not say."""
    place = alike[0].provenance
    here = [
        each for each in candidates if each.provenance.kind in (None, place.kind) and _stated(each) <= _stated(alike[0])
    ]
    done = {_besides_length(replace(each, provenance=place)) for each in alike}
    own = {_besides_length(replace(each, provenance=place)): each for each in reversed(here)}
    return tuple(each for key, each in reversed(own.items()) if key not in done)


def _stated(configuration: Configuration) -> set[str]:
    """Its versions; without a record of a rank, at most that of the user's script."""
    return {each for each in (configuration.provenance.software or "").split(", ") if each}


def _besides_length(configuration: Configuration) -> tuple[Any, ...]:
    return configuration.rest(NO_CHOICE)


def _choices(
    where: tuple[str, str, str | None, str | None],
    alike: list[Configuration],
    lost: tuple[Configuration, ...],
    demand: Demand,
    speedups: Mapping[int, Interval],
) -> Choices:
    rated = [(each, rates) for each in alike if (rates := VALUES["throughput"](each))]
    passes = [
        run.number(each.rate) * seconds
        for each, _ in rated
        for run in each.completed
        if run.number(each.rate) and (seconds := run.number("estimated_epoch_time_s"))
    ]
    of_pass = median(passes) if passes else None
    epochs = demand.epochs or max(each["epochs"] or 1 for each in alike)
    known = demand.samples or (of_pass and epochs * of_pass)
    work = known or ANY_WORK
    candidates = _candidates(rated)
    pool, learned = Pool([rates for _, rates in candidates]), learnings([each for each, _ in candidates])
    same = _together(alike, _besides_length)
    rows = []
    for index, (each, _) in enumerate(candidates):
        rate, per_unit = pool.mean(index), energy(each)
        low, high = (end and work / end for end in (rate.high, rate.low))
        joules = product_of([(1.0, per_unit)]).value if per_unit else None
        row = Choice(
            each,
            learned[index],
            replace(rate, value=work / rate.value, low=low, high=high),
            speedups[id(each)],
            joules and joules * work,
            max(peak_memory(each).values(), default=None),
        )
        reached = judged(same[_besides_length(each)], row.memory_bytes, demand, work, of_pass)
        rows.append(replace(row, quality=reached.quality, refused=reached.refused, unknown=reached.unknown))
    compared = _compared(_ordered(rows), demand.goal)
    return Choices(*where, alike[0].workload.unit.name, work, of_pass, bool(known), compared, tuple(alike), lost)


def _candidates(
    rated: Sequence[tuple[Configuration, dict[int, float]]],
) -> list[tuple[Configuration, dict[int, float]]]:
    """One of the configurations that differ only in what is no choice."""
    jobs = [configuration_key(each.parameters, (*NO_CHOICE, "repeat")) for each, _ in rated]
    once = observed_once([[each] for each, _ in rated], jobs, [len(own) for _, own in rated], observation=NO_CHOICE)
    return [rated[index] for index in once]


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


def _compared(rows: list[Choice], goal: str) -> list[Choice]:
    """Rows with the value of the goal, and how it compares with the best of the same training on as many devices."""
    values = [VALUES[goal](each.configuration) for each in rows]
    pool = Pool(values)
    found = [replace(row, value=pool.mean(index)) if values[index] else row for index, row in enumerate(rows)]
    better, worse = (max, "less") if goal == "throughput" else (min, "more")

    def best_of(indices: Sequence[int]) -> int:
        return better(indices, key=lambda index: found[index].value.value)

    counted_in = [index for index, row in enumerate(rows) if values[index] and not row.refused]
    for own in _together(counted_in, lambda index: rows[index].devices).values():
        bests = []
        for rivals in _together(own, lambda index: key_of(rows[index].learning)).values():
            best = best_of(rivals)
            bests.append(best)
            others = [index for index in rivals if index != best]
            found[best] = replace(found[best], is_best=True, rivals=len(rivals))
            for index, ratio in zip(others, pool.against_best(best, others), strict=True):
                found[index] = replace(found[index], ratio=ratio, is_worse=verdict(ratio) == worse, rivals=len(rivals))
        reference = next((index for index in bests if rows[index].is_alike), None)
        changed = [index for index in bests if index != reference]
        if reference is not None:
            for index, gain in zip(changed, pool.against_best(reference, changed, among=len(own)), strict=True):
                found[index] = replace(found[index], gain=gain, instead_of=rows[reference].learning)
    return found
