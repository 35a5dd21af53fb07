"""Groups of ranks told from simulated collectives, whose groups are known."""

import random

import numpy as np
import pytest

from multicard.trace.process_groups import RankTimes, Unclear, groups_of

MICROSECOND, MILLISECOND, SECOND = 1_000, 1_000_000, 1_000_000_000


def simulated(chance: random.Random, sizes: list[int], own_clocks: bool) -> tuple[list[RankTimes], list[list[int]]]:
    """Return the times of ranks in a random order, and their groups by position.

    In each call of a group a rank joins up to 3 ms late; the transfer takes as long as its size makes it, and all ranks
    end within 10 µs. Groups wander, since their calls come after work of random length. With `own_clocks` each rank
    counts from another moment, and its clock is up to 1 µs per second fast.
    """
    calls = chance.randint(20, 60)
    times: list[RankTimes] = []
    groups: list[int] = []
    for number, size in enumerate(sizes):
        work = [chance.uniform(8, 12) * MILLISECOND for _ in range(calls)]
        begins = np.cumsum(work) + chance.uniform(0, 5) * MILLISECOND
        joins = begins + np.array([[chance.uniform(0, 3) for _ in range(calls)] for _ in range(size)]) * MILLISECOND
        transfer = np.array([chance.choice([0.1, 1.0, 3.0]) for _ in range(calls)]) * MILLISECOND
        done = joins.max(axis=0) + transfer
        for start in joins:
            end = done + np.array([chance.uniform(0, 10) for _ in range(calls)]) * MICROSECOND
            offset, rate = (chance.uniform(-5, 5) * SECOND, 1 + chance.uniform(0, 1e-6)) if own_clocks else (0, 1)
            clock = f"of rank {len(times)}" if own_clocks else "of all"
            moments = [(offset + rate * moment).astype(np.int64) for moment in (start, end)]
            times.append(RankTimes(*moments, clock))
            groups.append(number)
    order = list(range(len(times)))
    chance.shuffle(order)
    members = [[place for place, rank in enumerate(order) if groups[rank] == number] for number in range(len(sizes))]
    return [times[rank] for rank in order], sorted(members)


@pytest.mark.parametrize("own_clocks", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_groups_of_simulated_ranks_are_found(seed: int, own_clocks: bool) -> None:
    chance = random.Random(seed)
    sizes = [chance.randint(1, 5) for _ in range(chance.randint(1, 5))]
    ranks, groups = simulated(chance, sizes, own_clocks)
    assert sorted(groups_of(ranks)) == groups


def rank(*ends_ms: float, clock: str = "of all") -> RankTimes:
    ends = np.array([round(end * MILLISECOND) for end in ends_ms])
    return RankTimes(ends - 2 * MILLISECOND, ends, clock)


def test_ranks_that_end_apart_by_the_same_time_in_each_call_are_one_group_only_without_a_common_clock() -> None:
    early, late = (10, 20, 30, 40), (14, 24, 34, 44)
    assert groups_of([rank(*early), rank(*late)]) == [[0], [1]]
    assert groups_of([rank(*early, clock="a"), rank(*late, clock="b")]) == [[0, 1]]


def test_ranks_that_end_neither_together_nor_apart_are_not_grouped() -> None:
    # A transfer of 2 ms may end within 5 % of it, 100 µs, around the median; here it is 150 µs.
    with pytest.raises(Unclear, match="do not tell which ranks belong together"):
        groups_of([rank(10, 20, 30, 40), rank(10.15, 19.85, 30.15, 39.85)])


def test_a_rank_alone_is_a_group_of_its_own() -> None:
    assert groups_of([rank(10, 20, 30)]) == [[0]]
    assert groups_of([rank(10, 20, 30), rank(13, 27, 39), rank(10, 20, 30)]) == [[0, 2], [1]]
