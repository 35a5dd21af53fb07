"""The rank that others wait for, from rows whose sums can be added up by hand."""

from typing import Any

from multicard.answers.bottlenecks.late_ranks import late_rank, waiting_inside


def row(rank: int, times_last: int, waited_s: float, **more: Any) -> dict[str, Any]:
    place = {"report": f"rank{rank}", "rank": rank, "process": 100 + rank, "device": 0}
    return place | {"collective": "all_reduce", "group": None, "calls": 10} | more | {
        "times_last": times_last, "waited_s": waited_s, "together_s": 0.1,
    }  # fmt: skip


def test_the_rank_that_is_last_in_most_collectives_is_named_with_what_the_others_wait() -> None:
    rows = [row(0, 1, 0.04), row(1, 0, 0.06), row(2, 9, 0.001)]
    assert late_rank(rows, 1.0) == "rank 2 is late in 9 of 10 collectives; the others wait 40.0 ms to 60.0 ms in all"
    assert late_rank(rows, 1.0, steps=10) == (
        "rank 2 is late in 9 of 10 collectives; the others wait 4.00 ms to 6.00 ms per step"
    )


def test_all_collectives_of_a_group_count_together() -> None:
    rows = [row(0, 0, 0.02), row(1, 10, 0.0)]
    rows += [row(0, 6, 0.01, collective="all_gather"), row(1, 4, 0.01, collective="all_gather")]
    assert late_rank(rows, 1.0) == "rank 1 is late in 14 of 20 collectives; rank 0 waits 30.0 ms in all"
    assert waiting_inside(rows) == {("rank0", 100, 0): 0.03, ("rank1", 101, 0): 0.01}


def test_no_rank_stands_out_where_they_take_turns_or_hardly_wait() -> None:
    assert late_rank([row(0, 5, 0.3), row(1, 5, 0.3)], 1.0) is None
    assert late_rank([row(0, 0, 0.009), row(1, 10, 0.0)], 1.0) is None  # less than 1 % of the time
    assert late_rank([], 1.0) is None


def test_without_a_span_what_counts_is_the_time_in_collectives() -> None:
    # 1 % of 0.1 s after all had joined and of the wait itself is 1.0101 ms.
    assert late_rank([row(0, 0, 0.00101), row(1, 10, 0.0)], None) is None
    assert late_rank([row(0, 0, 0.00102), row(1, 10, 0.0)], None) is not None


def test_of_several_groups_the_longest_wait_is_told() -> None:
    pairs = [row(0, 0, 0.05, group="0, 1"), row(1, 10, 0.0, group="0, 1")]
    pairs += [row(2, 0, 0.07, group="2, 3"), row(3, 10, 0.0, group="2, 3")]
    assert late_rank(pairs, 1.0) == (
        "rank 3 is late in 10 of 10 collectives; rank 2 waits 70.0 ms in all; so is 1 rank of other groups"
    )


def test_a_rank_without_a_number_is_named_by_its_process() -> None:
    rows = [each | {"rank": None} for each in (row(0, 0, 0.05), row(1, 10, 0.0))]
    assert late_rank(rows, 1.0) == (
        "process 101 on GPU 0 is late in 10 of 10 collectives; process 100 on GPU 0 waits 50.0 ms in all"
    )


def test_nobody_waits_for_a_rank_that_is_alone_in_its_group() -> None:
    # The other ranks of its group may be in captures that were not read.
    assert late_rank([row(0, 10, 0.5)], 1.0) is None
    pair = [row(1, 0, 0.06, group="pair"), row(2, 9, 0.0, group="pair")]
    assert late_rank([row(0, 10, 0.5), *pair], 1.0) == (
        "rank 2 is late in 9 of 10 collectives; rank 1 waits 60.0 ms in all"
    )
