"""Which call launched a kernel, in captures that make it hard to tell."""

from pathlib import Path

import pytest
from changed_traces import change, rows_of

from synthetic import MS, PID, global_id, nsys_export


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
