"""What decides how much is learned from a sample: only configurations in which it is equal are the same training."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from multicard.analysis.scaling.work import SAME_WORK
from multicard.experiment.wording import stated_value
from multicard.experiment.workload import BATCH
from multicard.results.configuration import Configuration

# Relative difference up to which a measured batch, a rate times a time, is a whole number.
ROUNDING = 1e-4

# By name, such as a precision or a batch.
Learning = Mapping[str, Any]
# By name, the value in a reference and the value in its place.
Changes = Mapping[str, tuple[Any, Any]]


def learning_of(configurations: Sequence[Configuration]) -> dict[Hashable, Learning]:
    """Return `Workload.learning` of each configuration that a run completed, by its key.

    Measured batches are means over steps, so the last steps of passes make them differ a little: those that are equal
    but for that have one value here.
    """
    learnings: dict[Hashable, Learning] = {}
    for configuration in configurations:
        values = {**configuration.parameters, **configuration.completed[0].values}
        learnings[configuration.key] = configuration.workload.learning(values)
    batches = [learning.get(BATCH) for learning in learnings.values()]
    measured = {batch for batch in batches if isinstance(batch, float)}
    names = _names_of_batches(measured)
    return {key: _with_batch_name(learning, names) for key, learning in learnings.items()}


def _names_of_batches(measured: set[float]) -> dict[float, int | str]:
    """Return what measured batches count as: the largest of those that are equal within `SAME_WORK`.

    >>> _names_of_batches({128.00001, 127.0, 63.4})
    {128.00001: 128, 127.0: 128, 63.4: 'about 63'}
    """
    names: dict[float, int | str] = {}
    descending = sorted(measured, reverse=True)
    for largest in descending:
        is_whole = abs(largest - round(largest)) < ROUNDING * largest
        name = round(largest) if is_whole else f"about {round(largest)}"
        for batch in descending:
            if batch >= largest * (1 - SAME_WORK):
                names.setdefault(batch, name)
    return names


def _with_batch_name(learning: Learning, names: Mapping[float, int | str]) -> Learning:
    batch = learning.get(BATCH)
    if isinstance(batch, float) and batch in names:
        return {**learning, BATCH: names[batch]}
    return learning


def key_of(learning: Learning) -> tuple[Any, ...]:
    """Return a hashable key that is equal for configurations that train identically."""
    return tuple(learning.items())


def changes_from(reference: Learning, learning: Learning) -> Changes:
    """Return what differs: its value in the reference, and in the other; None where one of them has none."""
    names = dict.fromkeys((*reference, *learning))
    pairs = {name: (reference.get(name), learning.get(name)) for name in names}
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def words_of(learning: Learning | Changes) -> str:
    """Return what decides how much is learned, or what is changed of it, in words; empty where nothing is.

    >>> words_of({"precision": ("fp32", "fp16")}), words_of({"precision": "fp16", "packed": True})
    ('precision: fp32 → fp16', 'precision: fp16, packed: true')
    >>> words_of({"global batch size": (128, 256), "batch_size": (32, 64)})  # the second implies the first
    'batch_size: 32 → 64'
    >>> words_of({"global batch size": (128, 256), "learning rate": (0.1, 0.2)})
    'global batch size: 128 → 256, learning rate: 0.1 → 0.2'
    """
    shown = dict(learning)
    factor = _factor(learning.get(BATCH))
    other_batches = [name for name in learning if name != BATCH and "batch" in name]
    other_factors = [_factor(learning[name]) for name in other_batches]
    # The global batch grows as much as the batch of a device that is shown beside it, so it says nothing new.
    if factor is not None and factor in other_factors:
        del shown[BATCH]
    texts = [f"{name}: {_value_words(value)}" for name, value in shown.items()]
    return ", ".join(texts)


def _value_words(value: Any) -> str:
    sides = value if isinstance(value, tuple) else (value,)
    texts = ["not known" if side is None else stated_value(side) for side in sides]
    return " → ".join(texts)


def _factor(change: Any) -> float | None:
    """Return how many times as large a number became; None of anything but a change of a number."""
    if not isinstance(change, tuple) or len(change) != 2:
        return None
    before, after = change
    are_numbers = all(isinstance(side, int | float) and side for side in change)
    return after / before if are_numbers else None
