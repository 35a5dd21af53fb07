"""What a training is to meet and what is to be best, and whether a configuration is known to meet it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from multicard.analysis.bottlenecks.bottlenecks import peak_memory
from multicard.analysis.choice.learning import SAME_WORK, values_of
from multicard.analysis.evidence import OBSERVATION, Configuration
from multicard.core.errors import UserError
from multicard.core.text import counted
from multicard.core.units import BYTES, number, percent, with_unit

MOST = 1e18  # of what a demand states: more than any training or budget has

Goal = Literal["throughput", "time_to_accuracy", "energy", "memory"]
GOALS: tuple[Goal, ...] = ("throughput", "time_to_accuracy", "energy", "memory")

# How long a run is and how it is observed: not a choice between configurations.
NO_CHOICE = ("epochs", "steps_per_epoch", "steps", "warmup_steps", "seed", *OBSERVATION)


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
    goal
        What is best: `throughput`, distinct images, or tokens without padding, per second; `time_to_accuracy`,
        training time to 98% of test accuracy; `energy` of the GPUs per distinct image or token; peak `memory`.

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
    goal: Goal = "throughput"

    def __post_init__(self) -> None:
        if self.goal not in GOALS:
            raise UserError(f"goal: found {self.goal!r}, expected one of {', '.join(GOALS)}")
        for name in (each.name for each in fields(self) if each.name != "goal"):
            value, most = getattr(self, name), 1.0 if name == "min_accuracy" else MOST
            if value is not None and not 0 < value <= most:
                expected = "a share above 0 and up to 1, such as 0.98" if most == 1 else "a number above 0, up to 1e18"
                raise UserError(f"{name}: found {value:g}, expected {expected}")
        if self.samples and self.epochs:
            raise UserError("samples and epochs: found both, expected one length of the training")


class Judged(NamedTuple):
    """The quality that a training reached, why it does not count, and whether that is since it is not known."""

    quality: float | None = None
    refused: str | None = None
    unknown: bool = False


def judged(
    same: Sequence[Configuration], memory: float | None, demand: Demand, work: float, of_pass: float | None
) -> Judged:
    """Whether a training counts, by configurations that differ from it only in how long they are or were observed."""
    most = demand.max_memory_bytes
    if most is not None and (memory is None or memory > most):
        why = "memory not recorded" if memory is None else f"needs {with_unit(memory, BYTES)} of memory"
        return Judged(None, why, memory is None)
    verdict = Judged()
    for kind, limit, sign in (("accuracy", demand.min_accuracy, 1), ("loss", demand.max_loss, -1)):
        if limit is None or verdict.refused:
            continue
        runs = [run for each in same for run in each.runs]
        lost = sum(run.values.get("outcome") == "diverged" for run in runs)
        if lost:  # the worst that a repeat may reach
            return Judged(verdict.quality, f"diverged in {lost} of {counted(len(runs), 'run')}")
        reached = [_reached(each, kind, sign, work, of_pass) for each in same]
        known = [each for each in reached if each is not None]
        # A run of the training's length counts more than a shorter one, that more than a longer one.
        share, value = min(
            known, key=lambda each: (each[0] > 1 + SAME_WORK, -each[0], sign * each[1]), default=(None, None)
        )
        verdict = Judged(value, *_refusal(kind, value, share, sign * ((value or 0) - limit) >= 0))
    return verdict


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


def _above_zero(values: dict[int, float]) -> dict[int, float]:
    """None where one is not, as where a meter did not move."""
    return values if all(value > 0 for value in values.values()) else {}


def _all_reached(configuration: Configuration) -> dict[int, float]:
    """Times to the accuracy goal by repeat, if every one reached it."""
    times = configuration.blocks("time_to_accuracy_s")
    return times if len(times) == len(configuration.completed) else {}


# Values of a goal by repeat; empty where it was not measured.
VALUES: dict[Goal, Callable[[Configuration], dict[int, float]]] = {
    "throughput": lambda configuration: _above_zero(configuration.blocks(configuration.rate)),
    "time_to_accuracy": lambda configuration: _above_zero(_all_reached(configuration)),
    "energy": lambda configuration: _above_zero(energy(configuration)),
    "memory": lambda configuration: _above_zero(peak_memory(configuration)),
}
