"""Ranks side by side in collectives, with waits that can be worked out by hand."""

from pathlib import Path

import pytest

from multicard.trace.files import open_trace
from multicard.trace.tables import ActivityTables, activity_tables
from synthetic import OTHER, PID, ranks_in_collectives

# Rank 0 joins at 0 and 50 µs, rank 1 at 10 and 45; both are done at 20 and 60.
JOINS = {PID: [(0, 20_000), (50_000, 60_000)], OTHER: [(10_000, 20_000), (45_000, 60_000)]}


def stragglers(*paths: Path) -> ActivityTables:
    return activity_tables([open_trace(path) for path in paths], only=["stragglers"])


def test_who_waits_for_whom_is_told(tmp_path: Path) -> None:
    first, second = stragglers(ranks_in_collectives(tmp_path / "t.sqlite", JOINS)).rows["stragglers"]
    assert (first["process"], first["collective"], first["calls"]) == (PID, "all_reduce", 2)
    assert (second["process"], second["collective"], second["calls"]) == (OTHER, "all_reduce", 2)
    assert (first["times_last"], second["times_last"]) == (1, 1)
    assert (first["waited_s"], second["waited_s"]) == (pytest.approx(10e-6), pytest.approx(5e-6))
    assert (first["max_wait_s"], first["median_wait_s"]) == (pytest.approx(10e-6), pytest.approx(5e-6))
    assert first["together_s"] == second["together_s"] == pytest.approx(20e-6)


def test_ranks_in_files_of_their_own_are_not_compared(tmp_path: Path) -> None:
    paths = [ranks_in_collectives(tmp_path / f"{pid}.sqlite", {pid: JOINS[pid]}) for pid in (PID, OTHER)]
    assert stragglers(*paths).absent == {"stragglers": "each rank is in a file of its own"}


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
