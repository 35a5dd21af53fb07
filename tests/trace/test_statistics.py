"""Statistics of values in groups, against those of the values themselves."""

import numpy as np

from multicard.trace.statistics import Grouped


def test_asking_for_a_group_without_values_does_not_make_it_one_with_values() -> None:
    durations = Grouped(code=np.array([0, 2, 0]), values=np.array([10, 20, 30]))
    assert durations.of([0, 1]).tolist() == [10, 30]
    assert [group in durations for group in range(4)] == [True, False, True, False]
