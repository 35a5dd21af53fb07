"""What the sampler proposes in a space whose truth is a formula."""

import itertools

import pytest

from multicard.search.proposals import proposals
from multicard.search.space import Levels, Space

VALUES = {"batch": [8, 16, 32, 64, 128, 256], "workers": [0, 1, 2, 4], "layout": ["nchw", "nhwc"]}
SPACE = Space(VALUES, {levels: levels for levels in itertools.product(range(6), range(4), range(2))})


def score(levels: Levels) -> float | None:
    """Rises with each parameter; the largest batch does not fit."""
    batch, workers, layout = levels
    return None if batch == 5 else batch + workers + layout


RESULTS = {levels: score(levels) for levels in list(SPACE.configurations)[::2]}
UNTRIED = [levels for levels in SPACE.configurations if levels not in RESULTS]


def test_the_same_results_and_seed_give_the_same_candidates_each_once() -> None:
    proposed = proposals(SPACE, RESULTS, UNTRIED, 8, seed=3)
    assert proposed == proposals(SPACE, RESULTS, UNTRIED, 8, seed=3)
    assert len(set(proposed)) == len(proposed) == 8 and set(proposed) <= set(UNTRIED)
    assert proposed != proposals(SPACE, RESULTS, UNTRIED, 8, seed=4)


@pytest.mark.parametrize("candidates", [[], [(0, 0, 1)]])
def test_only_candidates_are_proposed_however_few_there_are(candidates: list[Levels]) -> None:
    assert set(proposals(SPACE, RESULTS, candidates, 3, seed=0)) <= set(candidates)


def test_what_fits_and_is_better_is_proposed_more_often_than_by_chance() -> None:
    first = [proposals(SPACE, RESULTS, UNTRIED, 1, seed)[0] for seed in range(20)]
    completed = [score(levels) for levels in first if score(levels) is not None]
    # By chance, 3 of 20 would not fit, and the others would have 4.5 in the mean: 2 + 1.5 + 1.
    assert len(completed) >= 18
    assert sum(completed) / len(completed) > 6


def test_combinations_that_are_not_in_the_space_are_not_proposed() -> None:
    part = Space(VALUES, {levels: levels for levels in SPACE.configurations if levels[0] + levels[1] < 5})
    results = {levels: score(levels) for levels in list(part.configurations)[::3]}
    candidates = [levels for levels in part.configurations if levels not in results]
    assert set(proposals(part, results, candidates, 6, seed=0)) <= set(candidates)
