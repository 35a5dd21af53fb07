"""The search on spaces whose truth is a formula: what it finds, what it spends, and what it leaves out."""

import itertools
import math
from collections.abc import Callable

import pytest

from multicard.search.core import Search
from multicard.search.space import Space

pytestmark = pytest.mark.slow

Value = Callable[[str, int], float | None]  # of a configuration and its repeat

BATCH, WORKERS, LAYOUT, FUSED = [16, 32, 64, 128], [0, 2, 4], ["nchw", "nhwc"], [False, True]
VALUES = {"batch": BATCH, "workers": WORKERS, "layout": LAYOUT, "fused": FUSED}
SPACE = Space(
    VALUES,
    {
        levels: " ".join(str(listed[level]) for listed, level in zip(VALUES.values(), levels, strict=True))
        for levels in itertools.product(*(range(len(listed)) for listed in VALUES.values()))
    },
)


def truth(configuration: str) -> float:
    """Throughput: each parameter has a factor, and NHWC pays off only with the fused optimizer."""
    batch, workers, layout, fused = configuration.split()
    pays = 1.3 if (layout, fused) == ("nhwc", "True") else 0.9 if layout == "nhwc" else 1.0
    return 100 * (1 + BATCH.index(int(batch)) / 3) * (1 + WORKERS.index(int(workers)) / 2) * pays


BEST = "128 4 nhwc True"


def finish(search: Search, value: Value, cost: float = 1.0) -> list[tuple[str, int]]:
    """All that a search asks for until it ends."""
    asked = []
    while now := search.ask():
        asked += now
        for configuration, repeat in now:
            search.tell(configuration, repeat, value(configuration, repeat), cost)
    return asked


def slight(configuration: str, repeat: int) -> float:
    """The truth with one per cent of variation, the same for all."""
    return truth(configuration) * (1.01 if repeat % 2 else 0.99)


@pytest.fixture(scope="module")
def searched() -> tuple[Search, list[tuple[str, int]]]:
    search = Search(SPACE, maximize=True, repeats=3)
    return search, finish(search, slight)


def test_the_best_is_found_with_a_part_of_the_configurations(searched: tuple[Search, list[tuple[str, int]]]) -> None:
    search, asked = searched
    assert search.best == BEST == max(SPACE.configurations.values(), key=truth)
    assert len({configuration for configuration, _ in asked}) < len(search.configurations) == 48
    assert "were no better than the best" in search.stopped_trying
    # What was told decides what is asked, so that a search that was ended can be taken up.
    assert finish(Search(SPACE, maximize=True, repeats=3), slight) == asked


def test_it_stops_after_as_many_in_vain_as_the_best_has_neighbours_and_after_all_of_these(
    searched: tuple[Search, list[tuple[str, int]]],
) -> None:
    search, asked = searched
    # The other values of batch, workers, layout and fused.
    assert search.patience == 3 + 2 + 1 + 1 == len(search.space.neighbours(BEST))
    tried = [configuration for configuration, repeat in asked if repeat == 1]
    in_vain = len(tried) - 1 - tried.index(BEST)
    assert in_vain >= search.patience and f"the last {in_vain} were no better" in search.stopped_trying
    assert set(search.space.neighbours(BEST)) <= set(tried)


def test_the_screening_has_every_value_of_every_parameter() -> None:
    seen = [configuration.split() for configuration in Search(SPACE, maximize=True).screening]
    assert len(seen) == 6
    assert [set(column) for column in zip(*seen, strict=True)] == [set(map(str, own)) for own in VALUES.values()]


def test_no_run_is_asked_for_twice_and_only_what_is_close_is_repeated(
    searched: tuple[Search, list[tuple[str, int]]],
) -> None:
    search, asked = searched
    assert len(set(asked)) == len(asked) == search.spent
    # The next best configurations are a quarter or more below, by the formula.
    assert {configuration for configuration, repeat in asked if repeat > 1} == {BEST}
    assert search.completed[BEST].keys() == {1, 2, 3}
    assert search.mean(BEST) == pytest.approx(truth(BEST) * (1.01 * 0.99 * 1.01) ** (1 / 3))


def test_the_budget_is_not_exceeded_and_part_of_it_is_kept_for_repeats() -> None:
    search = Search(SPACE, maximize=True, repeats=3, budget=12)
    assert len(finish(search, slight)) <= 12
    assert len(search.completed[search.best]) == 3
    assert search.stopped_trying.startswith("the budget is spent, ")
    few = Search(Space({"a": [1, 2]}, {(0,): "1", (1,): "2"}), maximize=True, repeats=3, budget=3.5)
    assert len(finish(few, lambda *_: 2.0)) == 3  # both, and one of them again
    assert few.stopped_repeating == "the budget for repeats is spent"


def test_the_first_runs_show_what_a_run_costs() -> None:
    search = Search(SPACE, maximize=True, budget=100)
    [(configuration, _)] = search.ask()
    search.tell(configuration, 1, truth(configuration), 30.0)
    assert len(search.ask()) == 2  # 70 are left


def test_what_does_not_fit_is_avoided() -> None:
    def fits(configuration: str, _: int) -> float | None:
        return None if configuration.startswith("128") else truth(configuration)

    search = Search(SPACE, maximize=True)
    asked = finish(search, fits)
    assert search.best == "64 4 nhwc True"  # by the formula, the best of those that fit
    failed = [configuration for configuration, _ in asked if fits(configuration, 1) is None]
    assert 0 < len(failed) < 12
    assert not search.completed.keys() & set(failed)


def test_a_search_of_which_nothing_runs_ends() -> None:
    small = Space({"a": [1, 2, 3]}, {(level,): str(level) for level in range(3)})
    search = Search(small, maximize=True, repeats=3)
    assert sorted(finish(search, lambda *_: None)) == [("0", 1), ("1", 1), ("2", 1)]
    assert search.best is None
    spent = Search(SPACE, maximize=True, budget=3)
    assert len(finish(spent, lambda *_: None)) == 3


def test_what_is_left_out_is_not_asked_for() -> None:
    search = Search(SPACE, maximize=True)
    search.exclude([configuration for configuration in search.configurations if "nhwc" in configuration])
    asked = finish(search, slight)
    assert not [configuration for configuration, _ in asked if "nhwc" in configuration]
    assert search.best in ("128 4 nchw True", "128 4 nchw False")  # equal by the formula


def test_combinations_with_the_same_configuration_are_one() -> None:
    combinations = itertools.product(range(3), range(4))
    space = Space(
        {"workers": [0, 1, 2], "prefetch": [2, 4, 8, 16]},
        {(workers, prefetch): f"{workers} {prefetch if workers else 0}" for workers, prefetch in combinations},
    )
    search = Search(space, maximize=True)
    asked = finish(search, lambda configuration, _: 1.0 + int(configuration[0]))
    assert len(search.configurations) == 1 + 2 * 4
    assert len(set(asked)) == len(asked) <= 9


def test_more_noise_than_was_thought_brings_back_what_had_fallen_behind() -> None:
    space = Space({"a": ["x", "y"]}, {(0,): "x", (1,): "y"})
    values = {("x", 1): 200.0, ("x", 2): 100.0, ("x", 3): 110.0, ("y", 1): 180.0, ("y", 2): 185.0, ("y", 3): 182.0}
    search = Search(space, maximize=True, repeats=3)
    asked = finish(search, lambda *run: values[run])
    assert set(asked) == set(values)
    assert search.best == "y"
    assert search.mean("x") == pytest.approx(math.prod((200, 100, 110)) ** (1 / 3))
