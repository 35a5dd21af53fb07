"""How many repeats show a difference: against Cohen's tables, and how much repeats scatter, by hand."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from multicard.answers.comparison.estimates import needed_repeats_of
from multicard.answers.comparison.pairs import Pair
from multicard.answers.needed_repeats import NeededRepeats, needed_repeats
from multicard.stats.pool import Pool
from multicard.stats.power import power, repeats_to_show


@pytest.mark.parametrize(("deviations", "values"), [(1.0, 17), (0.8, 26), (0.5, 64)])
def test_as_many_values_are_needed_as_cohens_table_says(deviations: float, values: int) -> None:
    """For two samples at 5% and a power of 80%: Jacob Cohen, Psychological Bulletin 112(1), 1992."""
    # Two samples have 2 (n - 1) degrees of freedom, as three samples have in the model of blocks.
    assert repeats_to_show(math.exp(deviations * 0.1), 0.1, samples=3) == values
    assert repeats_to_show(math.exp(-deviations * 0.1), 0.1, samples=3) == values


def test_no_effect_is_shown_with_five_percent_and_a_huge_scatter_by_no_number_of_repeats() -> None:
    assert power(0.0, 7.0) == pytest.approx(0.05)
    assert repeats_to_show(1.02, 1.0) is None
    assert NeededRepeats(1.0, None).words() == "more than 1000 would show a difference of 2% (scatter 100.0%)"


def test_the_scatter_of_a_pool_is_without_what_blocks_have_in_common() -> None:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.2, 400)
    samples = [dict(enumerate(np.exp(shared + rng.normal(0, 0.01, 400)))) for _ in range(3)]
    assert Pool(samples).scatter == pytest.approx(0.01, rel=0.1)
    assert needed_repeats(Pool([{1: 1.0}, {1: 2.0}]), 2) is None


def pair(a: Sequence[float], b: Sequence[float], sessions: tuple[list[int], list[int]] | None) -> Pair:
    return Pair("a", "iteration_time", a, b, sessions)


def test_results_of_one_session_say_how_many_repeats_of_each_side_are_needed() -> None:
    rng = np.random.default_rng(2)
    a, b = np.exp(rng.normal(0, 0.02, (2, 500)))
    one_session = ([0] * 500, [0] * 500)
    found = needed_repeats_of([pair(a, b * 1.5, one_session)])
    assert found is not None and found.scatter == pytest.approx(0.02, rel=0.1)
    # Two samples whose means are ln 1.02 = 0.0198, one standard deviation, apart: 17 by Cohen's table.
    assert found.repeats == pytest.approx(17, abs=3)
    # Sessions may differ by more than repeats do, and a single repeat shows no scatter.
    assert needed_repeats_of([pair(a, b, ([0] * 500, [1] * 500))]) is None
    assert needed_repeats_of([pair(a[:1], b[:1], ([0], [0]))]) is None
    assert needed_repeats_of([]) is None
