"""What a whole training takes on each number of devices that was measured: time, device-hours, energy, cost.

The training is the same for all configurations of a job: as many samples, or tokens, at the throughput that was
measured. Configurations are compared where what they learn from a sample is the same (`Workload.learning`); a batch, a
precision, a learning rate or a technique is another choice, which is the user's.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.best import NO_CHOICE, candidates_of, differing, energy
from multicard.analysis.choice.learning import SAME_WORK, Changes, Learning, changes_from, key_of, learnings, values_of
from multicard.analysis.choice.pareto import Measured, front
from multicard.analysis.evidence import Configuration, Evidence
from multicard.analysis.pooling import Pool
from multicard.analysis.statistics import Interval, product_of
from multicard.core.errors import UserError
from multicard.core.text import counted
from multicard.core.units import BYTES, number, percent, with_unit

HOUR_S = 3600
MOST = 1e18  # of what a demand states: more than any training or budget has

Deadline = Literal["met", "may miss", "missed"]


@dataclass(frozen=True)
class Demand:
    """What a training is to meet.

    Attributes
    ----------
    deadline_s, gpu_hour_cost, max_memory_bytes
        Seconds of training; price of an hour of one GPU, in any currency; memory per device.
    min_accuracy, max_loss
        What it is to reach on the test data, or of language models in the last training steps.
    samples, epochs
        How long it is: samples (of language models tokens), or passes over the data. By default the most epochs of a
        job's runs, or one pass where runs have none.

    Raises
    ------
    UserError
        If a value is out of its range, or both lengths are stated.
    """

    deadline_s: float | None = None
    gpu_hour_cost: float | None = None
    max_memory_bytes: float | None = None
    min_accuracy: float | None = None
    max_loss: float | None = None
    samples: float | None = None
    epochs: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            most = 1.0 if name == "min_accuracy" else MOST
            if value is not None and not 0 < value <= most:
                expected = "a share above 0 and up to 1, such as 0.98" if most == 1 else "a number above 0, up to 1e18"
                raise UserError(f"{name}: found {value:g}, expected {expected}")
        if self.samples and self.epochs:
            raise UserError("samples and epochs: found both, expected one length of the training")


@dataclass(frozen=True)
class Training:
    """A whole training in one configuration, by its measured throughput.

    Attributes
    ----------
    learning
        What decides how much is learned from a sample.
    measured
        Its devices, rates and energies.
    changes
        What of it differs from that of the job's reference: its value there, and here.
    naming
        Parameters in which it differs from others of the same learning on as many devices.
    time_s
        Geometric mean over repeats with its 95% interval, by the scatter of all configurations of the job; no bounds
        for one repeat.
    energy_j, memory_bytes
        None where not recorded.
    quality
        The worst accuracy, or loss, of its repeats, as `Demand` asks for; None where not recorded.
    measured_s
        The shortest measured window of its repeats.
    refused
        Why it does not count; None where it does.
    unknown
        Whether that is because something was not recorded.
    on_front
        Whether it counts, and is on the Pareto front of those that count with the same learning.
    """

    configuration: Configuration
    learning: Learning
    measured: Measured
    time_s: Interval
    energy_j: float | None
    memory_bytes: float | None
    measured_s: float | None
    quality: float | None = None
    refused: str | None = None
    unknown: bool = False
    changes: Changes = field(default_factory=dict)
    naming: tuple[str, ...] = ()
    on_front: bool = False

    @property
    def devices(self) -> int:
        """Number of GPUs, or of CPU processes."""
        return self.measured.devices

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
class Tradeoff:
    """The trainings of one job on one kind of device and machine, with the same versions.

    Attributes
    ----------
    work, of_pass
        Samples or tokens of the training, and of a pass over the data as runs make it; None where not known.
    trainings
        Those of the reference learning first, the one that was measured on most numbers of devices; then by devices
        and time.
    versions
        Of the software that they ran with, as of all of them.
    lost
        Configurations of which no run completed.
    """

    job: str
    device: str
    machine: str | None
    unit: str
    work: float | None
    of_pass: float | None
    trainings: list[Training]
    versions: str | None = None
    lost: tuple[Configuration, ...] = ()

    @property
    def groups(self) -> list[list[Training]]:
        """Trainings by their learning, the reference first."""
        found: dict[Any, list[Training]] = defaultdict(list)
        for each in self.trainings:
            found[key_of(each.learning)].append(each)
        return list(found.values())


def tradeoffs(evidence: Evidence, demand: Demand | None = None, fallback: float | None = None) -> list[Tradeoff]:
    """Give the trainings of each job.

    Parameters
    ----------
    fallback
        Work of jobs whose length is neither stated nor known.
    """
    demand = demand or Demand()
    jobs: dict[Any, list[Configuration]] = defaultdict(list)
    for each in evidence.configurations:
        if each.completed:
            jobs[*_job(each), each.provenance.kind or "", each.provenance.software or ""].append(each)
    lost = [each for each in evidence.configurations if not each.completed]
    return [
        replace(
            _tradeoff(job, device, machine or None, alike, demand, fallback),
            versions=versions or None,
            lost=_lost([each for each in lost if _job(each) == (name, job, device)], alike),
        )
        for (name, job, device, machine, versions), alike in sorted(jobs.items(), key=lambda entry: entry[0])
    ]


def reaching(evidence: Evidence, demand: Demand) -> Callable[[Configuration], bool]:
    """Whether a configuration is known to reach the accuracy or loss of a demand; any does without these."""
    if demand.min_accuracy is None and demand.max_loss is None:
        return lambda _: True
    found = [each for job in tradeoffs(evidence, demand) for each in job.trainings if not each.refused]
    reached = {_besides_length(each.configuration) for each in found}
    return lambda configuration: _besides_length(configuration) in reached


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


def _tradeoff(
    job: str, device: str, machine: str | None, alike: list[Configuration], demand: Demand, fallback: float | None
) -> Tradeoff:
    unit = alike[0].workload.unit.name
    rated = [(each, rates) for each in alike if (rates := each.blocks(each.rate))]
    passes = [
        run.number(each.rate) * seconds
        for each, _ in rated
        for run in each.completed
        if run.number(each.rate) and (seconds := run.number("estimated_epoch_time_s"))
    ]
    of_pass = median(passes) if passes else None
    epochs = demand.epochs or max(each["epochs"] or 1 for each in alike)
    work = demand.samples or (of_pass and epochs * of_pass) or fallback
    if work is None:
        return Tradeoff(job, device, machine, unit, None, of_pass, [])
    found = []
    candidates = candidates_of(rated)
    pool, learned = Pool([rates for _, rates in candidates]), learnings([each for each, _ in candidates])
    for index, (configuration, rates) in enumerate(candidates):
        same = [each for each in alike if _besides_length(each) == _besides_length(configuration)]
        training = _training(configuration, learned[index], rates, pool.mean(index), work)
        found.append(_judged(training, same, demand, work, of_pass))
    return Tradeoff(job, device, machine, unit, work, of_pass, _ordered(found))


def _training(
    configuration: Configuration, learning: Learning, rates: Mapping[int, float], rate: Interval, work: float
) -> Training:
    low, high = (end and work / end for end in (rate.high, rate.low))
    per_unit = energy(configuration)
    joules = product_of([(1.0, per_unit)]).value if per_unit else None
    return Training(
        configuration,
        learning,
        Measured(configuration["devices"], rates, per_unit),
        replace(rate, value=work / rate.value, low=low, high=high),
        joules and joules * work,
        max(peak_memory(configuration).values(), default=None),
        min(configuration.values("elapsed_s"), default=None),
    )


def _judged(
    training: Training, same: list[Configuration], demand: Demand, work: float, of_pass: float | None
) -> Training:
    """With the quality that it reached, and why it does not count if it does not."""
    most, memory = demand.max_memory_bytes, training.memory_bytes
    if most is not None and (memory is None or memory > most):
        why = "memory not recorded" if memory is None else f"needs {with_unit(memory, BYTES)} of memory"
        training = replace(training, refused=why, unknown=memory is None)
    kinds = (("accuracy", demand.min_accuracy, 1), ("loss", demand.max_loss, -1))
    for kind, limit, sign in kinds:
        if limit is None or training.refused:
            continue
        runs = [run for each in same for run in each.runs]
        lost = sum(run.values.get("outcome") == "diverged" for run in runs)
        if lost:  # the worst that a repeat may reach
            training = replace(training, refused=f"diverged in {lost} of {counted(len(runs), 'run')}")
            continue
        reached = [_reached(each, kind, sign, work, of_pass) for each in same]
        known = [each for each in reached if each is not None]
        # A run of the training's length counts more than a shorter one, that more than a longer one.
        share, value = min(
            known, key=lambda each: (each[0] > 1 + SAME_WORK, -each[0], sign * each[1]), default=(None, None)
        )
        refused, unknown = _refusal(kind, value, share, sign * ((value or 0) - limit) >= 0)
        training = replace(training, quality=value, refused=refused, unknown=unknown)
    return training


def _reached(
    configuration: Configuration, kind: str, sign: int, work: float, of_pass: float | None
) -> tuple[float, float] | None:
    """Part of the work that its runs have seen, and the worst value that they reached; None where not recorded."""
    measure = getattr(configuration.workload, kind)
    values = configuration.values(measure) if measure else []
    seen = configuration.workload.seen(values_of(configuration), of_pass)
    if not values or len(values) < len(configuration.completed) or not seen:
        return None
    return seen / work, sign * min(sign * value for value in values)


def _refusal(kind: str, value: float | None, share: float | None, is_reached: bool) -> tuple[str | None, bool]:
    """Why a training does not count by what it learned, and whether that is since it is not known."""
    if value is None or share is None:
        return f"{kind} not recorded", True
    if share > 1 + SAME_WORK:
        return f"{kind} recorded only after {number(share)} times the samples", True
    if is_reached:
        return None, False
    if share < 1 - SAME_WORK:
        return f"{kind} {number(value)} after {percent(share)} of the samples", True
    return f"{kind} {number(value)}", False


def _ordered(found: list[Training]) -> list[Training]:
    """Trainings with what they change, how they are named and which are on the front; the reference learning first."""
    groups: dict[Any, list[Training]] = defaultdict(list)
    for each in found:
        groups[key_of(each.learning)].append(each)
    ranked = sorted(groups.values(), key=lambda own: (-len({each.devices for each in own}), -len(own)))
    if not ranked:
        return []
    reference = ranked[0][0].learning
    ranked[1:] = sorted(ranked[1:], key=lambda own: len(changes_from(reference, own[0].learning)))
    ordered = []
    for group in ranked:
        admitted = [each for each in group if not each.refused]
        is_on = front([each.measured for each in admitted])
        on_front = {id(each) for each, is_one in zip(admitted, is_on, strict=True) if is_one}
        for each in sorted(group, key=lambda one: (one.devices, one.time_s.value)):
            beside = [one.configuration for one in group if one.devices == each.devices]
            naming = differing(beside) if len(beside) > 1 else ()
            changes = changes_from(reference, each.learning)
            ordered.append(replace(each, changes=changes, naming=naming, on_front=id(each) in on_front))
    return ordered


def _besides_length(configuration: Configuration) -> tuple[Any, ...]:
    return configuration.rest(NO_CHOICE)
