"""Numbers that tests of claims compare with their limits, in each block of repeats."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from multicard.results.configuration import OBSERVATION, Configuration, MeasuredRun, observed_once
from multicard.stats.samples import shared_blocks


class ComparedNumber(NamedTuple):
    """A number that a test compares with its limits, in each block in which all of its `sides` ran.

    `sides`: the configurations that the number is computed from. A block is identified by the number of a repeat, in
    which every configuration runs once.
    """

    by_block: Mapping[int, float]
    sides: tuple[Configuration, ...]

    def runs(self, blocks: Iterable[int]) -> list[MeasuredRun]:
        """Return the completed runs of all sides in some blocks."""
        return [run for side in self.sides for run in side.completed if run.repeat in blocks]


def means_by_block(numbers: Sequence[ComparedNumber]) -> dict[int, float]:
    """Return for each block that all numbers have their geometric mean."""
    means: dict[int, float] = {}
    for block in shared_blocks([number.by_block for number in numbers]):
        means[block] = geometric_mean(number.by_block[block] for number in numbers)
    return means


def one_per_job(numbers: Sequence[ComparedNumber], job_sides: int | None = None) -> list[ComparedNumber]:
    """Return one of several numbers whose sides differ only in how runs are observed: the one with most blocks.

    `job_sides`: only that many sides, the first ones, are compared with those of other numbers; None for all.
    """
    return observed_once(
        numbers,
        job=lambda number: tuple(side.rest(OBSERVATION) for side in number.sides[:job_sides]),
        block_count=lambda number: len(number.by_block),
    )


def same_blocks(numbers: Sequence[ComparedNumber]) -> list[ComparedNumber]:
    """Return the numbers with only the blocks that all of them have; no numbers if there is no such block.

    A mean has to be of the same numbers in all blocks. Otherwise it would differ between blocks because different
    numbers contribute.
    """
    blocks = shared_blocks([number.by_block for number in numbers])
    if not blocks:
        return []
    restricted = []
    for number in numbers:
        by_block = {block: number.by_block[block] for block in blocks}
        restricted.append(number._replace(by_block=by_block))
    return restricted
