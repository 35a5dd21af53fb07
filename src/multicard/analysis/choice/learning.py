"""What decides how much is learned from a sample: only configurations with the same are the same training."""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.analysis.evidence import Configuration
from multicard.experiment.workload import BATCH

ROUNDING = 1e-4  # relative, of a rate times a time
SAME_WORK = 0.05  # relative difference up to which a run has seen as many samples as the training

Learning = Mapping[str, Any]
Changes = Mapping[str, tuple[Any, Any]]


def values_of(configuration: Configuration) -> dict[str, Any]:
    """Parameters, and measures of the first completed run."""
    return {**configuration.parameters, **configuration.completed[0].values}


def learnings(configurations: Sequence[Configuration]) -> list[Learning]:
    """`Workload.learning` of each, measured batches that are equal but for the last ones of a pass having one value."""
    found = [each.workload.learning(values_of(each)) for each in configurations]
    measured = sorted({each[BATCH] for each in found if isinstance(each.get(BATCH), float)})
    equal: dict[float, int | str] = {}
    for largest in reversed(measured):
        for batch in measured:
            if batch >= largest * (1 - SAME_WORK):
                equal.setdefault(batch, _in_words(largest))
    return [
        {**each, BATCH: equal[batch]} if isinstance(batch := each.get(BATCH), float) and batch in equal else each
        for each in found
    ]


def _in_words(samples: float) -> int | str:
    """A mean of samples per step as a number where it is one, as where all batches are full."""
    whole = round(samples)
    return whole if abs(samples - whole) < ROUNDING * whole else f"about {whole}"


def key_of(learning: Learning) -> tuple[Any, ...]:
    """The same for what is the same."""
    return tuple(learning.items())


def changes_from(reference: Learning, learning: Learning) -> Changes:
    """What differs: its value in the reference, and here."""
    names = dict.fromkeys((*reference, *learning))
    pairs = {name: (reference.get(name), learning.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def changes_words(changes: Changes) -> str:
    """What is traded for the reference's learning; empty where nothing is.

    >>> changes_words({"precision": ("fp32", "fp16")})
    'precision: fp32 → fp16'
    """
    return ", ".join(
        f"{name}: {value_words(before)} → {value_words(after)}" for name, (before, after) in changes.items()
    )


def learning_words(learning: Learning) -> str:
    """Words for what decides how much is learned."""
    return ", ".join(f"{name}: {value_words(value)}" for name, value in learning.items())


def value_words(value: Any) -> str:
    """Word for a value, as a configuration file states it."""
    if value is None:
        return "not known"
    return str(value).lower() if isinstance(value, bool) else str(value)
