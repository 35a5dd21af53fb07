"""The best measured configuration for a goal per job and number of devices, if the data decide it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.learning import Changes, changes_from, key_of, learnings
from multicard.analysis.choice.observation import observed_once
from multicard.analysis.evidence import OBSERVATION, Configuration, Evidence
from multicard.analysis.pooling import Pool
from multicard.analysis.statistics import Interval, verdict

Goal = Literal["throughput", "time_to_accuracy", "energy", "memory"]
GOALS: tuple[Goal, ...] = ("throughput", "time_to_accuracy", "energy", "memory")

# Configurations with values by repeat.
Valued = Sequence[tuple[Configuration, dict[int, float]]]

# How long a run is and how it is observed: not a choice between configurations.
NO_CHOICE = (
    "epochs", "steps_per_epoch", "steps", "warmup_steps", "seed", *OBSERVATION,
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The configurations of one job on one number of devices, by a goal.

    Attributes
    ----------
    job
        What they have in common, in words.
    best
        The one with the best geometric mean over repeats; `value` is its value.
    differing
        Parameters in which the candidates differ, without those that another one implies.
    tied
        Others that are not significantly different, by a test that allows for the best having been chosen.
    of_one_repeat
        How many of these are so because one of the two has a single repeat, hence no interval.
    repeats
        The fewest repeats in a comparison of the best with another; 0 without another.
    candidates
        How many configurations have a value for the goal; those that differ only in `NO_CHOICE` are one.
    excluded
        How many others are refused: above the memory limit, not known to be below it, or not admitted.
    changes
        What is learned from a sample otherwise than in `unchanged`: the value there, and here.
    unchanged
        The choice among those with the learning that most candidates have; None where that is the learning of the best.
    """

    job: str
    device: str
    devices: int
    machine: str | None
    versions: str | None
    best: Configuration | None
    value: Interval | None
    tied: list[Configuration]
    of_one_repeat: int
    repeats: int
    differing: tuple[str, ...]
    candidates: int
    excluded: int
    changes: Changes = field(default_factory=dict)
    unchanged: "Choice | None" = None

    @property
    def decided(self) -> bool:
        """Whether the best differs significantly from all others."""
        return self.best is not None and self.candidates > 1 and not self.tied


def choices(
    evidence: Evidence,
    goal: Goal,
    max_memory_bytes: float | None = None,
    admitted: Callable[[Configuration], bool] = lambda _: True,
) -> list[Choice]:
    """Per job, machine, versions and number of devices the best configuration for a goal.

    Parameters
    ----------
    goal
        `throughput`: distinct images, or tokens without padding, per second. `time_to_accuracy`: training time to 98%
        of test accuracy. `energy`: of the GPUs, per distinct image or token. `memory`: peak per device.
    max_memory_bytes
        Leave out configurations that need more per device.
    admitted
        Whether a configuration counts otherwise.
    """
    groups: dict[Any, list[Configuration]] = defaultdict(list)
    for each in evidence.configurations:
        if each.completed:
            place = each.provenance.machine, each.provenance.software
            groups[each.workload.job(each.parameters), *place, each["device"], each["devices"]].append(each)
    found = []
    for (job, machine, versions, device, devices), alike in groups.items():
        every = candidates_of([(each, values) for each in alike if (values := _above_zero(VALUES[goal](each)))])
        valued = [(each, values) for each, values in every if _fits(each, max_memory_bytes) and admitted(each)]
        if every:  # else the job has no such measure
            place = job, device, devices, machine, versions
            choice = _choice(place, valued, goal, differing([each for each, _ in every]), len(every) - len(valued))
            found.append(_beside_unchanged(place, choice, valued, goal))
    found.sort(key=lambda each: (each.job, each.machine or "", each.device, each.devices, each.versions or ""))
    return found


def _choice(place: tuple[Any, ...], valued: Valued, goal: Goal, differ: tuple[str, ...], excluded: int = 0) -> Choice:
    return Choice(*place, *_best(valued, goal), differ, len(valued), excluded)


def _beside_unchanged(place: tuple[Any, ...], choice: Choice, valued: Valued, goal: Goal) -> Choice:
    """With what the best changes of what is learned, and the choice among those that do not."""
    if choice.best is None:
        return choice
    keys = [key_of(each) for each in learnings([each for each, _ in valued])]
    most = max(keys, key=keys.count)
    own = next(key for key, (each, _) in zip(keys, valued, strict=True) if each is choice.best)
    if own == most:
        return choice
    others = [one for one, key in zip(valued, keys, strict=True) if key == most]
    unchanged = _choice(place, others, goal, choice.differing)
    return replace(choice, changes=changes_from(dict(most), dict(own)), unchanged=unchanged)


def candidates_of(valued: Valued) -> list[tuple[Configuration, dict[int, float]]]:
    """One of the configurations that differ only in what is no choice."""
    jobs = [
        tuple((name, value) for name, value in each.parameters.items() if name not in (*NO_CHOICE, "repeat"))
        for each, _ in valued
    ]
    once = observed_once([[each] for each, _ in valued], jobs, [len(own) for _, own in valued], observation=NO_CHOICE)
    return [valued[index] for index in once]


def _best(valued: Valued, goal: Goal) -> tuple[Configuration | None, Interval | None, list[Configuration], int, int]:
    if not valued:
        return None, None, [], 0, 0
    pool = Pool([values for _, values in valued])
    means = [pool.mean(index) for index in range(len(valued))]
    choose, worse = (max, "less") if goal == "throughput" else (min, "more")
    best = choose(range(len(means)), key=lambda index: means[index].value)
    others = [index for index in range(len(means)) if index != best]
    ratios = pool.against_best(best, others)
    tied = {index: verdict(ratio) for index, ratio in enumerate(ratios) if verdict(ratio) != worse}
    of_one_repeat = list(tied.values()).count("unknown")
    fewest = min((ratio.repeats for ratio in ratios), default=0)
    return valued[best][0], means[best], [valued[others[index]][0] for index in tied], of_one_repeat, fewest


def differing(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """Parameters with more than one value that are a choice."""
    table = pd.DataFrame([configuration.parameters for configuration in configurations])
    names = [name for name in configurations[0].parameters if name not in NO_CHOICE]
    return tuple(configurations[0].workload.varying(table, names))


def energy(configuration: Configuration) -> dict[int, float]:
    """Joules per distinct sample, or per token, by repeat; samples that several ranks repeat count once.

    None of repeats in which the meter did not move.
    """
    unit = configuration.workload.unit
    if unit.column != "samples":
        return {repeat: value for repeat, value in configuration.blocks(unit.energy).items() if value > 0}
    names = ("energy_per_sample_j", "processed_samples_per_s", "throughput_samples_per_s")
    rows = {run.repeat: [run.number(name) for name in names] for run in configuration.completed}
    found = {repeat: per_distinct(*values) for repeat, values in rows.items()}
    return {repeat: value for repeat, value in found.items() if value is not None}


def per_distinct(joules: float | None, processed: float | None, distinct: float | None) -> float | None:
    """Joules per distinct sample, by those per processed one and the rates of both; None where one is 0 or unknown."""
    return joules * processed / distinct if joules and processed and distinct else None


VALUES: dict[Goal, Callable[[Configuration], dict[int, float]]] = {
    "throughput": lambda configuration: configuration.blocks(configuration.rate),
    "time_to_accuracy": lambda configuration: _all_reached(configuration),
    "energy": energy,
    "memory": peak_memory,
}


def _above_zero(values: dict[int, float]) -> dict[int, float]:
    """None where one is not, as where a meter did not move."""
    return values if all(value > 0 for value in values.values()) else {}


def _all_reached(configuration: Configuration) -> dict[int, float]:
    """Times to the accuracy goal by repeat, if every one reached it."""
    times = configuration.blocks("time_to_accuracy_s")
    return times if len(times) == len(configuration.completed) else {}


def _fits(configuration: Configuration, most: float | None) -> bool:
    peaks = peak_memory(configuration).values()
    return most is None or (bool(peaks) and max(peaks) <= most)
