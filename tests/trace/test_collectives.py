"""Ranks side by side in collectives, with waits that can be worked out by hand."""

from pathlib import Path
from typing import Any

import pytest

from communicating import Call, note, pytorch_rank
from multicard.answers.bottlenecks.late_ranks import late_rank
from multicard.trace.files import open_trace
from multicard.trace.tables import ActivityTables, activity_tables
from synthetic import MS, OTHER, PID, ranks_in_collectives

# Rank 0 joins at 0 and 50 µs, rank 1 at 10 and 45; both are done at 20 and 60.
JOINS = {PID: [(0, 20_000), (50_000, 60_000)], OTHER: [(10_000, 20_000), (45_000, 60_000)]}
BASE = 1_767_189_312_000_000_000


def stragglers(*paths: Path) -> ActivityTables:
    return activity_tables([open_trace(path) for path in paths], only=["stragglers"])


def waits(found: ActivityTables, *more: str) -> dict[int, tuple[Any, ...]]:
    """How long each rank waited in the median, in milliseconds, and how often it was last."""
    return {
        row["process"]: (round(1e3 * row["median_wait_s"], 6), row["times_last"], *(row[name] for name in more))
        for row in found.rows["stragglers"]
    }


def test_who_waits_for_whom_is_told(tmp_path: Path) -> None:
    first, second = stragglers(ranks_in_collectives(tmp_path / "t.sqlite", JOINS)).rows["stragglers"]
    assert (first["process"], first["collective"], first["calls"]) == (PID, "all_reduce", 2)
    assert (second["process"], second["collective"], second["calls"]) == (OTHER, "all_reduce", 2)
    assert (first["times_last"], second["times_last"]) == (1, 1)
    assert (first["waited_s"], second["waited_s"]) == (pytest.approx(10e-6), pytest.approx(5e-6))
    assert (first["max_wait_s"], first["median_wait_s"]) == (pytest.approx(10e-6), pytest.approx(5e-6))
    assert first["together_s"] == second["together_s"] == pytest.approx(20e-6)
    assert (first["ranks"], first["by"], first["group"]) == (2, "clock", None)


def test_ranks_in_files_of_their_own_are_compared_by_durations(tmp_path: Path) -> None:
    # The clock of the second counts from another moment.
    later = [(start + 3000 * MS, end + 3000 * MS) for start, end in JOINS[OTHER]]
    paths = [
        ranks_in_collectives(tmp_path / f"{pid}.sqlite", {pid: joins})
        for pid, joins in ((PID, JOINS[PID]), (OTHER, later))
    ]
    first, second = stragglers(*paths).rows["stragglers"]
    assert (first["waited_s"], second["waited_s"]) == (pytest.approx(10e-6), pytest.approx(5e-6))
    assert (first["times_last"], second["times_last"]) == (1, 1)
    assert first["together_s"] == second["together_s"] == pytest.approx(20e-6)
    assert (first["by"], second["by"]) == ("duration", "duration")


@pytest.mark.parametrize(
    ("joins", "says"),
    [
        ({PID: JOINS[PID]}, "only one rank"),
        ({PID: JOINS[PID], OTHER: JOINS[OTHER][:1]}, "the ranks show different numbers of all_reduce"),
        ({PID: [(0, 5)], OTHER: [(10, 20)]}, "calls of all_reduce do not overlap between ranks"),
    ],
)
def test_what_cannot_be_matched_is_said(tmp_path: Path, joins: dict, says: str) -> None:
    assert says in stragglers(ranks_in_collectives(tmp_path / "t.sqlite", joins)).absent["stragglers"]


def test_processes_of_two_nodes_that_share_a_number_stay_apart(tmp_path: Path) -> None:
    paths = [ranks_in_collectives(tmp_path / f"{node}.sqlite", {PID: JOINS[PID]}, node) for node in ("n1", "n2")]
    rows = activity_tables([open_trace(path) for path in paths], only=["kernels"]).rows["kernels"]
    assert [(row["report"], row["process"], row["calls"]) for row in rows] == [("n1", PID, 2), ("n2", PID, 2)]


def pairs(times: int) -> dict[int, list[tuple[int, int]]]:
    """Pairs of ranks that reduce among themselves: every 20 ms the second of each pair is 1 ms late, transfer 5 ms."""
    starts = {PID: 0, OTHER: 1, PID + 2: 4, PID + 3: 5}
    ends = {PID: 6, OTHER: 6, PID + 2: 10, PID + 3: 10}
    return {pid: [((20 * k + starts[pid]) * MS, (20 * k + ends[pid]) * MS) for k in range(times)] for pid in starts}


def test_ranks_that_reduce_among_themselves_are_told_apart(tmp_path: Path) -> None:
    found = stragglers(ranks_in_collectives(tmp_path / "t.sqlite", pairs(50)))
    first, second = f"processes {PID}, {OTHER}", f"processes {PID + 2}, {PID + 3}"
    assert waits(found, "ranks", "group") == {
        PID: (1, 0, 2, first), OTHER: (0, 50, 2, first), PID + 2: (1, 0, 2, second), PID + 3: (0, 50, 2, second),
    }  # fmt: skip


def test_a_rank_that_ends_with_no_other_and_one_with_other_calls_are_left_out_with_a_notice(tmp_path: Path) -> None:
    joins = pairs(50)
    del joins[PID + 3]
    joins[PID + 4] = joins[PID][:-1]
    found = stragglers(ranks_in_collectives(tmp_path / "t.sqlite", joins))
    assert waits(found) == {PID: (1, 0), OTHER: (0, 50)}
    different, alone, other = found.notices
    assert different == "waiting for other ranks: the ranks show different numbers of all_reduce"
    assert {alone.rpartition(" ")[2], other.rpartition(" ")[2]} == {str(PID + 2), str(PID + 4)}


def ranks_of(folder: Path, calls: dict[int, list[Call]], base: int | None = None) -> list[Path]:
    return [pytorch_rank(folder / f"rank{rank}.json", own, rank, base) for rank, own in calls.items()]


def late_by(delay: float, clock: float, group: str | None, sequences: range, ranks: int = 2) -> list[Call]:
    """All-reduces of 1 MB, one every 20 ms, that end 6 ms after its begin; this rank joins so many µs late."""
    return [
        Call(clock + 20_000 * k + delay, 6_000 - delay, note("allreduce", 1_000_000, ranks, group, k))
        for k in sequences
    ]


def test_ranks_of_pytorch_without_a_common_clock_are_matched_by_their_sequence(tmp_path: Path) -> None:
    # Rank 1 joins 5 ms late, its clock is 3 s ahead, and its trace begins and ends two calls later.
    calls = {0: late_by(0, 0, "0", range(10)), 1: late_by(5_000, 3_000_000, "0", range(2, 12))}
    tables = activity_tables([open_trace(path) for path in ranks_of(tmp_path, calls)])
    rows = {row["rank"]: row for row in tables.rows["stragglers"]}
    names = ("calls", "times_last", "waited_s", "together_s", "by")
    assert [rows[0][name] for name in names] == [8, 0, pytest.approx(0.040), pytest.approx(0.008), "duration"]
    assert [rows[1][name] for name in names] == [8, 8, 0.0, pytest.approx(0.008), "duration"]


def test_the_bandwidth_of_matched_ranks_is_over_the_time_after_all_had_joined(tmp_path: Path) -> None:
    calls = {0: late_by(0, 0, "0", range(10)), 1: late_by(5_000, 3_000_000, "0", range(10))}
    tables = activity_tables([open_trace(path) for path in ranks_of(tmp_path, calls)])
    for name in ("collectives", "message_sizes"):
        assert [row["total_s"] for row in tables.rows[name]] == [pytest.approx(0.06), pytest.approx(0.01)]
        assert [row["transfer_s"] for row in tables.rows[name]] == [pytest.approx(0.01)] * 2
        assert [row["bus_bandwidth_bytes_per_s"] for row in tables.rows[name]] == [pytest.approx(1.0e9)] * 2


def test_on_a_common_clock_waiting_is_told_by_it(tmp_path: Path) -> None:
    # Rank 1 joins 300 µs late each time; it ends 10 µs after rank 0.
    calls = {
        0: [Call(2000 * k, 700, note("allreduce", 4_000_000, 2, "0")) for k in range(6)],
        1: [Call(2000 * k + 300, 410, note("allreduce", 4_000_000, 2, "0")) for k in range(6)],
    }
    found = stragglers(*ranks_of(tmp_path, calls, BASE))
    assert waits(found, "by") == {100: (0.3, 0, "clock"), 101: (0, 6, "clock")}
    # A clock that is 3 s ahead shows that the traces do not have one clock, whatever they say.
    calls[1] = [call._replace(start=call.start + 3e6) for call in calls[1]]
    found = stragglers(*ranks_of(tmp_path, calls, BASE))
    assert waits(found, "by") == {100: (0.29, 0, "duration"), 101: (0, 6, "duration")}
    [notice] = found.notices
    assert "the clocks of the ranks differ, by their calls of all_reduce" in notice


def test_a_broadcast_tells_who_waits_only_on_a_common_clock(tmp_path: Path) -> None:
    # Its root may leave before the others have joined, so the shortest duration is not that of the last to join.
    calls = {
        rank: [
            Call(2000 * k, 500 if rank else 600, note(kind, 4_000_000, 2, "0"))
            for k, kind in enumerate(["allreduce", "broadcast"] * 5)
        ]
        for rank in (0, 1)
    }
    found = stragglers(*ranks_of(tmp_path, calls))
    assert {row["collective"] for row in found.rows["stragglers"]} == {"all_reduce"}
    [notice] = found.notices
    assert "calls of broadcast need a common clock" in notice
    found = stragglers(*ranks_of(tmp_path, calls, BASE))
    assert {row["collective"] for row in found.rows["stragglers"]} == {"all_reduce", "broadcast"}


def test_a_kind_of_which_ranks_show_different_numbers_is_left_out_with_a_notice(tmp_path: Path) -> None:
    calls = {rank: late_by(5_000 * rank, 0, "0", range(10)) for rank in (0, 1)}
    calls = {rank: [call._replace(notes={**call.notes, "Seq": None}) for call in own] for rank, own in calls.items()}
    calls[0].append(Call(300_000, 10, note("broadcast", 1000, 2, "0")))
    calls[0].append(Call(310_000, 10, note("broadcast", 1000, 2, "0")))
    calls[1].append(Call(300_000, 10, note("broadcast", 1000, 2, "0")))
    found = stragglers(*ranks_of(tmp_path, calls, BASE))
    assert waits(found) == {100: (5, 0), 101: (0, 10)}
    assert found.notices == ("waiting for other ranks: the ranks show different numbers of broadcast",)


def test_groups_that_share_a_name_are_told_apart_by_their_times(tmp_path: Path) -> None:
    # Four ranks use the name of a group of two. Of each pair the second is 5 ms late, the second pair ends 9 ms later.
    calls = {rank: late_by(5_000 * (rank % 2), 9_000 * (rank // 2), "tp", range(10)) for rank in range(4)}
    found = stragglers(*ranks_of(tmp_path, calls, BASE))
    assert waits(found, "group") == {
        100: (5, 0, "0, 1"), 101: (0, 10, "0, 1"), 102: (5, 0, "2, 3"), 103: (0, 10, "2, 3"),
    }  # fmt: skip


def test_each_rank_is_in_a_group_of_each_of_its_communicators(tmp_path: Path) -> None:
    # Ranks 0, 1 and 2, 3 are one dimension, 0, 2 and 1, 3 the other; rank 3 is late in both.
    calls: dict[int, list[Call]] = {rank: [] for rank in range(4)}
    for rank, own in calls.items():
        late = 1_000 if rank == 3 else 0
        for k in range(10):
            tensor, data = f"tp{rank // 2}", f"dp{rank % 2}"
            own.append(Call(20_000 * k + late, 2_000 - late, note("allreduce", 1000, 2, tensor), stream=20))
            own.append(Call(20_000 * k + 9_000 + late, 4_000 - late, note("allreduce", 1000, 2, data), stream=21))
    rows = stragglers(*ranks_of(tmp_path, calls, BASE)).rows["stragglers"]
    waited = {(row["rank"], row["group"]): round(1e3 * row["waited_s"], 6) for row in rows if row["waited_s"]}
    assert waited == {(2, "tp1"): 10, (1, "dp1"): 10}
    assert {(row["rank"], row["group"]) for row in rows if row["times_last"] == 10 and not row["waited_s"]} == {
        (0, "tp0"), (1, "tp0"), (3, "tp1"), (0, "dp0"), (2, "dp0"), (3, "dp1"),
    }  # fmt: skip


def test_a_rank_that_seven_others_wait_for_is_named(tmp_path: Path) -> None:
    # The shape of a published capture of 8 ranks, nearly all of whose communication is waiting for one of them: a
    # transfer of 1 ms, rank 3 joins 20 ms late, and the others within 2 ms.
    calls = {
        rank: [
            Call(50_000 * k + join, 21_000 - join, note("allreduce", 1_000_000, 8, "0", k))
            for k, join in enumerate([20_000 if rank == 3 else 100 * rank] * 40)
        ]
        for rank in range(8)
    }
    rows = stragglers(*ranks_of(tmp_path, calls)).rows["stragglers"]
    # Per step the others wait 20 ms but for the 0 to 0.7 ms by which they are late themselves.
    assert late_rank(rows, span_s=2.0, steps=40) == (
        "rank 3 is late in 40 of 40 collectives; the others wait 19.3 ms to 20.0 ms per step"
    )
    waited, together = (sum(row[name] for row in rows) for name in ("waited_s", "together_s"))
    assert waited / (waited + together) == pytest.approx((7 * 20 - 2.5) / (7 * 21 - 2.5 + 1))
