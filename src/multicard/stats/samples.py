"""Samples: the values of one configuration over its repeats, and the blocks that several samples have in common."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Iterable[float | None]
# Values by the block in which they were measured. A block is a repeat in which every configuration ran once. Two
# samples with common blocks are compared block by block. A block may state `looks` and `scenarios`: see `looks_of` and
# `scenarios_of`.
Blocks = Mapping[Any, float | None]
Sample = Blocks | Values


@dataclass(frozen=True)
class UsableSample:
    """The finite numbers of a sample, at least one. Made by `usable`."""

    numbers: np.ndarray
    scaled: np.ndarray  # the logarithms of `numbers`, or `numbers` itself; means and variances are computed from these
    blocks: list[Hashable] | None  # the block of each number; None if the sample has no blocks

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.numbers)

    def in_blocks(self, blocks: Sequence[Hashable]) -> np.ndarray:
        """Return the scaled values of some blocks, in the order of `blocks`. The sample must have all of them."""
        scaled_by_block = dict(zip(self.blocks or (), self.scaled, strict=True))
        return np.array([scaled_by_block[block] for block in blocks])


def looks_of(sample: UsableSample) -> int:
    """Return how often results are looked at before the last block is known: the most that a block states, else 1."""
    return max((getattr(block, "looks", 1) for block in sample.blocks or ()), default=1)


def scenarios_of(sample: UsableSample) -> tuple[Hashable, ...]:
    """Return the scenarios that have a sample, each once, the first one first; (None,) if its blocks state none."""
    stated = [scenario for block in sample.blocks or () for scenario in getattr(block, "scenarios", ())]
    return tuple(dict.fromkeys(stated)) or (None,)


def usable(sample: Sample, logs: bool) -> UsableSample | None:
    """Return the finite numbers of a sample, with their logarithms as `scaled` if `logs` is True.

    None if there is no finite number, or if `logs` is True and a number is not above zero.
    """
    blocks = None
    if isinstance(sample, Mapping):
        number_of_block = numbers_by_block(sample)
        blocks = list(number_of_block)
        numbers = np.array(list(number_of_block.values()))
    else:
        numbers = numbers_of(sample)
    if not len(numbers) or (logs and numbers.min() <= 0):
        return None
    return UsableSample(numbers, np.log(numbers) if logs else numbers, blocks)


def is_number(value: float | None) -> bool:
    """Return whether a value is a finite number; False for None, NaN and pandas.NA, which stand for empty cells."""
    if value is None:
        return False
    # An empty cell of a nullable column is pandas.NA, which `math.isfinite` refuses.
    try:
        return math.isfinite(value)
    except TypeError:
        return False


def numbers_of(sample: Sample) -> np.ndarray:
    """Return the finite numbers of a sample.

    >>> numbers_of({1: 5.0, 2: None, 3: float("inf")}).tolist(), numbers_of([2, 3]).tolist()
    ([5.0], [2.0, 3.0])
    """
    values = sample.values() if isinstance(sample, Mapping) else sample
    numbers = [float(value) for value in values if value is not None and is_number(value)]
    return np.array(numbers)


def numbers_by_block(blocks: Blocks) -> dict[Hashable, float]:
    """Return the finite numbers by block; blocks with another value are left out."""
    return {block: float(value) for block, value in blocks.items() if value is not None and is_number(value)}


def shared_blocks(samples: Sequence[Sample]) -> list[Any]:
    """Return the blocks in which all samples have a finite number, in the order of the first sample.

    The list is empty if one of the samples is not by block.

    >>> shared_blocks([{1: 5.0, 2: 6.0, 3: None}, {2: 7.0, 3: 8.0}])
    [2]
    """
    samples_by_block = [sample for sample in samples if isinstance(sample, Mapping)]
    if not samples_by_block or len(samples_by_block) < len(samples):
        return []

    def is_shared(block: Hashable) -> bool:
        return all(is_number(sample.get(block)) for sample in samples_by_block)

    return list(filter(is_shared, samples_by_block[0]))


def ratio_by_block(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """Return value / base for each block in which both are above zero; other blocks are left out.

    >>> ratio_by_block({1: 6.0, 2: 8.0, 3: 1.0}, {1: 2.0, 2: 0.0, 4: 1.0})
    {1: 3.0}
    """
    ratios = {}
    for block, value in values.items():
        base_value = base.get(block, 0)
        if value > 0 and base_value > 0:
            ratios[block] = value / base_value
    return ratios


def geometric_mean(sample: Sample) -> float | None:
    """Return the geometric mean of the finite numbers of a sample; None if there are none, or one is not above zero.

    >>> round(geometric_mean([2.0, 8.0]), 6), geometric_mean({1: 0.0})
    (4.0, None)
    """
    numbers = numbers_of(sample)
    if not len(numbers) or numbers.min() <= 0:
        return None
    return float(np.exp(np.log(numbers).mean()))
