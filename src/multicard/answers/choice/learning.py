"""What decides how much is learned from a sample. Configurations are the same training only if all of it is equal."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from multicard.answers.scaling.work import SAME_WORK
from multicard.config.wording import stated_value
from multicard.programs.program import BATCH
from multicard.results.configuration import Configuration

# A measured batch (rate × time of a step) counts as a whole number if it differs from it by less than this share.
ROUNDING = 1e-4

# Stands for the value of a parameter that a training does not have.
NOT_SET = "not set"

# What decides how much is learned, by name: {"global batch size": 128, "precision": "fp32"}.
Learning = Mapping[str, Any]
# What differs between two of them, by name: the value before and the value after.
Changes = Mapping[str, tuple[Any, Any]]


def learning_of(configurations: Sequence[Configuration]) -> dict[Hashable, Learning]:
    """Return `Comparison.learning` of each configuration, by its key. Each needs a completed run.

    A measured batch is a mean over steps. The last batch of an epoch may be smaller, so measured batches differ a
    little between runs. Those that are equal within `SAME_WORK` get the same value here.
    """
    learnings: dict[Hashable, Learning] = {}
    for configuration in configurations:
        first_run = configuration.completed[0]
        values = {**configuration.parameters, **first_run.values}
        learnings[configuration.key] = configuration.program.comparison.learning(values)
    batches = [learning.get(BATCH) for learning in learnings.values()]
    measured = {batch for batch in batches if isinstance(batch, float)}
    names = _names_of_batches(measured)
    return {key: _with_batch_name(learning, names) for key, learning in learnings.items()}


def _names_of_batches(measured: set[float]) -> dict[float, int | str]:
    """Return what each measured batch counts as: the largest of those that exceed it by at most `SAME_WORK`, or itself.

    >>> _names_of_batches({128.00001, 127.0, 63.4})
    {128.00001: 128, 127.0: 128, 63.4: 'about 63'}
    """
    names: dict[float, int | str] = {}
    largest_first = sorted(measured, reverse=True)
    for batch in largest_first:
        equal_batches = (larger for larger in largest_first if batch >= larger * (1 - SAME_WORK))
        largest = next(equal_batches)
        is_whole = abs(largest - round(largest)) < ROUNDING * largest
        names[batch] = round(largest) if is_whole else f"about {round(largest)}"
    return names


def _with_batch_name(learning: Learning, names: Mapping[float, int | str]) -> Learning:
    """Return what decides how much is learned, with a measured batch as what it counts as."""
    batch = learning.get(BATCH)
    if isinstance(batch, float) and batch in names:
        return {**learning, BATCH: names[batch]}
    return learning


def key_of(learning: Learning) -> tuple[Any, ...]:
    """Return a hashable key that is equal for configurations that train identically."""
    return tuple(learning.items())


def changes_from(reference: Learning, learning: Learning) -> Changes:
    """Return what differs, by name: its value in `reference` and its value in `learning`.

    None is a value that is not known. `NOT_SET` stands for a parameter that one of them does not have, such as another
    technique's.
    """
    changes: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys((*reference, *learning)):
        before = reference.get(name, NOT_SET)
        after = learning.get(name, NOT_SET)
        if before != after:
            changes[name] = (before, after)
    return changes


def words_of(learning: Learning | Changes) -> str:
    """Return what decides how much is learned, or the changes of it, in words; empty if there is nothing.

    >>> words_of({"precision": ("fp32", "fp16")}), words_of({"precision": "fp16", "packed": True})
    ('precision: fp32 → fp16', 'precision: fp16, packed: true')
    >>> words_of({"global batch size": (128, 256), "batch_size": (32, 64)})  # the second implies the first
    'batch_size: 32 → 64'
    >>> words_of({"global batch size": (128, 256), "learning rate": (0.1, 0.2)})
    'global batch size: 128 → 256, learning rate: 0.1 → 0.2'
    """
    names = [name for name in learning if not _is_implied(name, learning)]
    texts = [f"{name}: {_value_words(learning[name])}" for name in names]
    return ", ".join(texts)


def _is_implied(name: str, learning: Learning | Changes) -> bool:
    """Return True if `name` is the global batch, and another batch that is shown grows by the same factor."""
    if name != BATCH:
        return False
    factor = _factor(learning[BATCH])
    if factor is None:
        return False
    other_batches = [other for other in learning if other != BATCH and "batch" in other]
    return any(_factor(learning[other]) == factor for other in other_batches)


def _value_words(value: Any) -> str:
    """Return a value, or the two values of a change, in words: "fp32 → fp16"."""
    values = value if isinstance(value, tuple) else (value,)
    texts = ["not known" if entry is None else stated_value(entry) for entry in values]
    return " → ".join(texts)


def _factor(change: Any) -> float | None:
    """Return the number after a change over the number before; None if one is 0 or no number, or without a change."""
    if not isinstance(change, tuple) or len(change) != 2:
        return None
    before, after = change
    are_numbers = isinstance(before, int | float) and isinstance(after, int | float)
    return after / before if are_numbers and before and after else None
