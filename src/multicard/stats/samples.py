"""The values of one configuration over its repeats (a sample), and the values by which two samples can be compared."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Values = Iterable[float | None]
# Values by the block in which they were measured, such as a repeat in which every configuration ran once. Samples with
# common blocks are compared within these.
Blocks = Mapping[Any, float | None]
Sample = Blocks | Values


def is_number(value: float | None) -> bool:
    """True if a value is a finite number."""
    # An empty cell of a nullable column is pandas.NA, which `math.isfinite` refuses.
    try:
        return value is not None and math.isfinite(value)
    except TypeError:
        return False


def numbers_of(sample: Sample) -> np.ndarray:
    """Return the finite numbers of a sample."""
    values = sample.values() if isinstance(sample, Mapping) else sample
    return np.array([float(value) for value in values if value is not None and is_number(value)])


def numbers_by_block(blocks: Blocks) -> dict[Hashable, float]:
    """Return the blocks that have a finite number, with it."""
    return {block: float(value) for block, value in blocks.items() if value is not None and is_number(value)}


def shared_blocks(samples: Sequence[Sample]) -> list[Any]:
    """Return the blocks in which all samples have a number; none where a sample has no blocks.

    >>> shared_blocks([{1: 5.0, 2: 6.0, 3: None}, {2: 7.0, 3: 8.0}])
    [2]
    """
    by_block = [sample for sample in samples if isinstance(sample, Mapping)]
    if not by_block or len(by_block) < len(samples):
        return []
    return [block for block in by_block[0] if all(is_number(sample.get(block)) for sample in by_block)]


def ratio_by_block(values: Mapping[int, float], base: Mapping[int, float]) -> dict[int, float]:
    """Return the ratio in each block that both samples have; blocks whose values have no logarithm are left out.

    >>> ratio_by_block({1: 6.0, 2: 8.0, 3: 1.0}, {1: 2.0, 2: 0.0, 4: 1.0})
    {1: 3.0}
    """
    return {block: value / base[block] for block, value in values.items() if value > 0 and base.get(block, 0) > 0}


def geometric_mean(sample: Sample) -> float | None:
    """Return the geometric mean of the numbers of a sample; None without any, or where one is not above zero.

    >>> round(geometric_mean([2.0, 8.0]), 6), geometric_mean({1: 0.0})
    (4.0, None)
    """
    numbers = numbers_of(sample)
    if not len(numbers) or numbers.min() <= 0:
        return None
    return float(np.exp(np.log(numbers).mean()))
