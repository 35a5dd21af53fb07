"""Statistics in groups, against Python's own."""

import random
import statistics as plain

import numpy as np
import pytest

from multicard.trace import statistics
from multicard.trace.statistics import Grouped
from random_inputs import seeds


@seeds(30, 300)
def test_any_union_of_groups_has_its_own_values(seed: int) -> None:
    chance = random.Random(seed)
    rows = [(chance.randrange(8), chance.randrange(1 << 33)) for _ in range(chance.randrange(1, 60))]
    grouped = Grouped(*(np.array(column) for column in zip(*rows, strict=True)))
    for groups in ((0,), (1, 5), tuple(range(8))):
        groups = [group for group in groups if group in grouped]
        own = [value for group, value in rows if group in groups]
        assert bool(groups) == bool(own)
        if not own:
            continue
        found = statistics.statistics(grouped.of(groups))
        assert (found.calls, found.total, found.min, found.max) == (len(own), sum(own), min(own), max(own))
        assert found.mean == pytest.approx(plain.fmean(own))
        assert found.median == plain.median(own)
        assert found.std == (pytest.approx(plain.stdev(own)) if len(own) > 1 else None)


def test_totals_of_32_bit_values_do_not_overflow() -> None:
    assert statistics.statistics(np.full(5, 4_000_000_000, np.uint32)).total == 20_000_000_000
