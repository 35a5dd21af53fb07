"""Exports of Nsight Systems promise no order of rows: since 2025.6 not even that of time (its release notes).

A new version may also add columns, and not only behind the others (export_schema_version_notes.txt of nsys).
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from captures import Process, make_trace
from changed_traces import answers, assert_equal_but_for_the_last_digit, change, shuffled
from communicating import Launched, NcclCall, nccl_export
from multicard.trace.files import open_trace
from multicard.trace.find_steps import find_steps
from multicard.trace.nsys_diagnostics import diagnostics, failed_launches
from multicard.trace.sqlite_file import SqliteFile
from multicard.trace.tables import CAPTURE, STEPS, activity_tables
from synthetic import MS, PID, add_messages, global_id, nsys_export, ranks_in_collectives

SEEDS = [1, 2, 3]


def everything(path: Path) -> Path:
    """Two processes with ranges, calls, kernels, copies, messages of NCCL and calls of another process."""
    nsys_export(path, other_calls=True)
    add_messages(path)
    # All messages of `add_messages` begin at once. Of a thread's calls of NCCL, one begins after the other.
    return change(path, "UPDATE NVTX_EVENTS SET start = 41 WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)")


def stragglers(path: Path) -> Path:
    """Three ranks in two all-reduces, of which each waits for another rank."""
    return ranks_in_collectives(
        path, {PID: [(0, 90), (200, 300)], PID + 1: [(50, 90), (200, 300)], PID + 2: [(80, 90), (290, 300)]}
    )


def communicators(path: Path) -> Path:
    """Calls of two communicators on two streams, launched in another order than they run."""
    calls = [NcclCall(10, 12, 7, 1000), NcclCall(20, 22, 8, 64), NcclCall(30, 32, 7, 4000)]
    kernels = [Launched(11, 400, 500, 20), Launched(21, 100, 150, 21), Launched(31, 600, 900, 20)]
    return nccl_export(path, calls, kernels, {7: 4, 8: 2})


def idle_devices(path: Path) -> Path:
    """Two processes whose devices wait for the host: for calls, for waiting, and in long pauses outside of calls."""
    steps = [(0.0, 20.0), (20.0, 40.0)]
    kernels = [(1.0, 2.0, 9.0, "gemm"), (12.0, 13.0, 19.0, "relu"), (21.0, 22.0, 30.0, "gemm")]
    others = [(3.0, 8.0, "cudaStreamSynchronize"), (9.5, 11.5, "cudaMalloc"), (31.0, 35.0, "cudaFree")]
    processes = [Process(steps, kernels, others), Process(steps, kernels[:2], others[:1])]
    return make_trace(path, *processes, lanes={"relu": (8, 2)})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scope", [CAPTURE, STEPS])
@pytest.mark.parametrize("export", [everything, stragglers, communicators, idle_devices])
def test_rows_in_any_order_give_the_same_answers(
    export: Callable[[Path], Path], scope: str, seed: int, tmp_path: Path
) -> None:
    path = export(tmp_path / "report.sqlite")
    expected = answers(path, scope)
    assert any(expected["rows"].values())
    assert_equal_but_for_the_last_digit(answers(shuffled(path, seed), scope), expected)


@pytest.mark.parametrize("export", [everything, stragglers, communicators, idle_devices])
def test_new_columns_before_the_others_change_nothing(export: Callable[[Path], Path], tmp_path: Path) -> None:
    path = export(tmp_path / "report.sqlite")
    expected = answers(path)
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        change(
            path, f"ALTER TABLE {table} RENAME TO old", f"CREATE TABLE {table} AS SELECT 5 AS added, * FROM old",
            "DROP TABLE old",
        )  # fmt: skip
    change(path, "CREATE TABLE META_DATA_EXPORT (name, value)")
    change(path, "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.28.1')")
    assert answers(path) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_of_calls_made_equally_often_the_first_by_name_is_named(seed: int, tmp_path: Path) -> None:
    # The GPU is idle from 2 to 12 ms, in calls of either function.
    path = make_trace(tmp_path / "t.sqlite", Process(kernels=[(0.0, 1.0, 2.0, "gemm"), (11.0, 12.0, 13.0, "gemm")]))
    change(
        path, "INSERT INTO StringIds VALUES (9, 'cudaGraphLaunch')",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 9, start = 3000000 WHERE correlationId = 1",
    )  # fmt: skip
    [row] = activity_tables([open_trace(shuffled(path, seed))]).rows["timeline"]
    assert row["idle_launching_call"] == "cudaGraphLaunch"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_nsys_says_of_its_capture_is_in_order_of_time(seed: int, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    change(
        path, "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, severity INT, text TEXT)",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (30, 2, 'CUDA c'), (10, 2, 'CUDA z'), (20, 3, 'CUDA b')",
        "INSERT INTO DIAGNOSTIC_EVENT VALUES (40, 3, 'CUDA z')",
    )  # fmt: skip
    assert [diagnostic.text for diagnostic in diagnostics(SqliteFile(shuffled(path, seed)))] == [
        "CUDA z", "CUDA b", "CUDA c",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_errors_of_equally_many_launches_are_in_order_of_their_codes(seed: int, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite", other_calls=True)
    change(
        path, "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD returnValue INT DEFAULT 0",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 700 WHERE correlationId = 0",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 2 WHERE correlationId = 2",
    )  # fmt: skip
    assert failed_launches(SqliteFile(shuffled(path, seed))) == [
        "1 launch failed (error 2)", "1 launch failed (error 700)",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_of_several_marks_of_a_rank_the_last_in_time_counts(seed: int, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    thread = global_id(PID, PID + 1)
    for start, rank in ((9, 3), (1, 6), (5, 4)):
        change(
            path, "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) "
            f"VALUES ({start * MS}, 34, 'rank:{rank}', {thread})",
        )  # fmt: skip
    assert open_trace(shuffled(path, seed)).ranks[PID] == 3


@pytest.mark.parametrize("seed", SEEDS)
def test_ranges_are_offered_by_number_and_then_by_name(seed: int, tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    change(path, "UPDATE NVTX_EVENTS SET text = 'part' WHERE text = 'step'")
    assert find_steps([open_trace(shuffled(path, seed))]).ranges == ["forward", "backward", "part"]
