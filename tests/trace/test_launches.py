"""Which call launched a kernel, in captures that make it hard to tell or cannot tell it and say so."""

from pathlib import Path

import pytest

from captures import COPY, KernelTimes, Process, make_trace
from changed_traces import change, rows_of
from console import multicard
from multicard.trace.files import open_trace
from multicard.trace.tables import STEPS, ActivityTables, activity_tables
from synthetic import MS, PID, global_id, kineto_trace, nsys_export


def launches(path: Path, *changes: str) -> dict:
    """Of calls at 0-1 and 2-4 ms and kernels from 1 and 6 ms, after changes."""
    [row] = rows_of(change(nsys_export(path), *changes), only=["launches"])["launches"]
    return row


TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")


@pytest.mark.parametrize(
    "changes",
    [
        [f"UPDATE {table} SET correlationId = correlationId * 3000000000 + 5" for table in TABLES],
        # Of calls with one correlation the first counts.
        [f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({3 * MS}, {4 * MS}, 1, {global_id(PID, 1)}, 1, 4)"],
        # A row that repeats a call launches nothing.
        [f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 1, 67, {global_id(PID, 1)}, 1, 4)"],
    ],
    ids=["far apart", "a call inside", "a row that repeats"],
)
def test_what_launched_a_kernel_is_told_by_correlations(changes: list[str], tmp_path: Path) -> None:
    assert launches(tmp_path / "t.sqlite", *changes) == launches(tmp_path / "plain.sqlite") | {"report": "t"}


def test_kernels_of_one_graph_share_their_call(tmp_path: Path) -> None:
    row = launches(tmp_path / "t.sqlite", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0")
    assert (row["kernels"], row["joined"]) == (2, 2)
    assert row["max_latency_s"] == pytest.approx(0.006)


def test_a_kernel_without_a_correlation_has_no_call(tmp_path: Path) -> None:
    row = launches(
        tmp_path / "t.sqlite",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = NULL WHERE correlationId = 0",
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT start, end, eventClass, globalTid, NULL, nameId "
        "FROM CUPTI_ACTIVITY_KIND_RUNTIME",
    )
    assert (row["kernels"], row["joined"]) == (2, 1)


def test_no_call_at_all_leaves_delays_empty(tmp_path: Path) -> None:
    row = launches(tmp_path / "t.sqlite", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 99")
    assert (row["kernels"], row["joined"]) == (2, 0)
    assert row["median_latency_s"] is row["max_queue_delay_s"] is None


# Twenty kernels of 1 ms in two steps, each launched 10 µs before it begins.
STEP_TIMES = [(0.0, 20.0), (20.0, 40.0)]
KERNELS: list[KernelTimes] = [(2.0 * n, 2.0 * n + 0.01, 2.0 * n + 1.01, "gemm") for n in range(20)]


def tables(path: Path) -> ActivityTables:
    return activity_tables([open_trace(path)], scope=STEPS)


@pytest.mark.parametrize("suffix", ["json", "sqlite"])
def test_of_a_gpu_that_begins_before_it_is_told_no_launches_are_known(suffix: str, tmp_path: Path) -> None:
    work: list[KernelTimes] = [(call, start - 325, end - 325, name) for call, start, end, name in KERNELS]
    path = make_trace(tmp_path / f"t.{suffix}", Process(STEP_TIMES, work))
    found = tables(path)
    [line] = found.warnings
    assert line.startswith(f"t: process {PID}, device 0: begins work up to 325 ms before it is launched")
    assert [row["joined"] for row in found.rows.get("launches", [])] in ([], [0])
    assert "325 ms before it is launched" in " ".join(multicard("analyze", path, "--only", "timeline").stdout.split())


def test_a_gpu_that_is_far_behind_its_host_is_no_wrong_clock(tmp_path: Path) -> None:
    # The host launches everything within 3 ms, and the last kernel ends after 150.
    work: list[KernelTimes] = [(0.02 * n, 1.0 * n + 0.01, 1.0 * n + 1.01, "gemm") for n in range(150)]
    assert tables(make_trace(tmp_path / "t.sqlite", Process([(0.0, 151.0)], work))).warnings == ()


def test_launches_without_a_kernel_are_counted(tmp_path: Path) -> None:
    path = make_trace(tmp_path / "t.sqlite", Process(STEP_TIMES, KERNELS))
    found = tables(change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId >= 18"))
    lacking = 20 - found.rows["kernels"][0]["calls"]
    assert found.warnings == (f"t: process {PID}: {lacking} of 20 kernel launches have no kernel",)
    assert lacking > 0


FAILED = ("ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN returnValue INT DEFAULT 0",)


def test_launches_that_failed_are_named_with_their_error(tmp_path: Path) -> None:
    some = make_trace(tmp_path / "some.sqlite", Process(STEP_TIMES, KERNELS))
    of_some = "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 700 WHERE correlationId >= 18"
    # The call of the driver inside that of the runtime fails with it.
    inside = (
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId >= 18"
    )
    gone = "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId >= 18"
    [warning] = tables(change(some, *FAILED, of_some, inside, gone)).warnings
    assert warning.endswith("kernel launches have no kernel: 2 launches failed (error 700)")
    every = make_trace(tmp_path / "every.sqlite", Process(STEP_TIMES, KERNELS))
    of_all = "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = 209"
    found = tables(change(every, *FAILED, of_all, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"))
    assert found.diagnostics == ("20 launches failed (error 209)",)


def test_without_a_launch_of_kernels_it_is_known_that_there_are_none(tmp_path: Path) -> None:
    copies: list[KernelTimes] = [(call, start, end, COPY) for call, start, end, _ in KERNELS]
    path = make_trace(tmp_path / "t.sqlite", Process(STEP_TIMES, copies), lanes={})
    change(path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL", "UPDATE StringIds SET value = 'cudaMemcpyAsync' WHERE id = 1")
    first, *_ = tables(path).rows["timeline"]
    # 1 ms of each 2 ms.
    assert (first["busy_s"], first["memory_s"]) == (pytest.approx(0.020), pytest.approx(0.020))


def test_two_captures_of_one_rank_are_said(tmp_path: Path) -> None:
    paths = [kineto_trace(tmp_path / f"{number}.json") for number in range(2)]
    found = activity_tables([open_trace(path) for path in paths], scope=STEPS)
    assert "rank 1 is in 2 traces: captures of one rank count as GPUs of their own" in found.warnings


def test_two_processes_of_one_rank_in_one_trace_are_said(tmp_path: Path) -> None:
    trace = open_trace(make_trace(tmp_path / "t.sqlite", *[Process(STEP_TIMES, KERNELS)] * 2))
    trace.ranks = {PID: 3, PID + 1: 3}
    assert activity_tables([trace]).warnings == (
        "rank 3 is in 2 processes, each of which counts as a rank of its own",
    )  # fmt: skip
    trace.ranks = {PID: 3, PID + 1: 4}
    assert activity_tables([trace]).warnings == ()


def test_kernels_of_one_process_that_end_too_early_do_not_hide_those_that_another_lacks(tmp_path: Path) -> None:
    path = make_trace(tmp_path / "t.sqlite", *[Process(STEP_TIMES, KERNELS)] * 2)
    last_5 = f"start > {30 * MS}"  # of 20 kernels, which begin every 2 ms
    change(
        path,
        f"DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE {last_5} AND globalPid = {global_id(PID)}",
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1 WHERE {last_5} AND globalPid = {global_id(PID + 1)}",
    )
    found = tables(path)
    assert found.warnings == (f"t: process {PID}: 5 of 20 kernel launches have no kernel",)
    assert found.notices[0] == "t: 5 kernels end before they begin, left out"
