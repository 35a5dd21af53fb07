"""What decides how much is learned from a sample: only configurations with the same are the same training."""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.analysis.evidence import Configuration, as_stated
from multicard.analysis.scaling.speedup import SAME_WORK
from multicard.experiment.workload import BATCH

ROUNDING = 1e-4  # relative, of a rate times a time

Learning = Mapping[str, Any]
Changes = Mapping[str, tuple[Any, Any]]


def learnings(configurations: Sequence[Configuration]) -> list[Learning]:
    """`Workload.learning` of each, measured batches that are equal but for the last ones of a pass having one value."""
    found = [each.workload.learning({**each.parameters, **each.completed[0].values}) for each in configurations]
    measured = sorted({each[BATCH] for each in found if isinstance(each.get(BATCH), float)}, reverse=True)
    equal: dict[float, int | str] = {}
    for largest in measured:
        name = round(largest) if abs(largest - round(largest)) < ROUNDING * largest else f"about {round(largest)}"
        for batch in (each for each in measured if each >= largest * (1 - SAME_WORK)):
            equal.setdefault(batch, name)
    return [
        each | {BATCH: equal[batch]} if isinstance(batch := each.get(BATCH), float) and batch in equal else each
        for each in found
    ]


def key_of(learning: Learning) -> tuple[Any, ...]:
    """The same for what is the same."""
    return tuple(learning.items())


def changes_from(reference: Learning, learning: Learning) -> Changes:
    """What differs: its value in the reference, and here."""
    names = dict.fromkeys((*reference, *learning))
    pairs = {name: (reference.get(name), learning.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def words_of(learning: Learning | Changes) -> str:
    """What decides how much is learned, or what is traded for that of the reference; empty where nothing is.

    >>> words_of({"precision": ("fp32", "fp16")}), words_of({"precision": "fp16", "packed": True})
    ('precision: fp32 → fp16', 'precision: fp16, packed: true')
    >>> words_of({"global batch size": (128, 256), "batch_size": (32, 64)})  # the second tells the first
    'batch_size: 32 → 64'
    >>> words_of({"global batch size": (128, 256), "learning rate": (0.1, 0.2)})
    'global batch size: 128 → 256, learning rate: 0.1 → 0.2'
    """
    told = {_times(pair) for name, pair in learning.items() if name != BATCH and "batch" in name}
    if _times(learning.get(BATCH)) in told - {None}:
        learning = {name: value for name, value in learning.items() if name != BATCH}
    sides = {name: value if isinstance(value, tuple) else (value,) for name, value in learning.items()}
    words = {name: ["not known" if each is None else as_stated(each) for each in own] for name, own in sides.items()}
    return ", ".join(f"{name}: {' → '.join(own)}" for name, own in words.items())


def _times(pair: Any) -> float | None:
    """How many times as large a number became; None of what is no change of a number."""
    is_of_numbers = isinstance(pair, tuple) and all(isinstance(each, int | float) and each for each in pair)
    return pair[1] / pair[0] if is_of_numbers else None
