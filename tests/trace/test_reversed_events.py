"""Events that end before they begin, as broken captures have them, are left out and counted."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from multicard import read_trace
from synthetic import kineto_trace, nsys_export


def broken_export(path: Path, *changes: str) -> Path:
    """Write `nsys_export` with changes, in SQL."""
    nsys_export(path)
    with closing(sqlite3.connect(path)) as db:
        for change in changes:
            db.execute(change)
        db.commit()
    return path


@pytest.mark.parametrize("end", [0, 5_999_999])
@pytest.mark.parametrize("scope", ["capture", "steps"])
def test_kernels_that_end_before_they_begin_are_left_out_with_a_notice(tmp_path: Path, end: int, scope: str) -> None:
    # Of the kernels of 3 and 5 ms the second, which begins at 6 ms, ends before that.
    path = broken_export(
        tmp_path / "a.sqlite", f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = {end} WHERE start = 6000000"
    )
    trace = read_trace(path, scope=scope)
    [kernels] = trace.rows("kernels")
    assert (kernels["calls"], kernels["total_s"], kernels["min_s"]) == (1, pytest.approx(0.003), pytest.approx(0.003))
    assert trace.notices[0] == "a: 1 kernel ends before it begins, left out"
    row = next(row for row in trace.rows("timeline") if row["scope"] != "step")
    assert row["compute_s"] == pytest.approx(0.003)
    only = read_trace(path, tables=["kernels"])
    assert (only.rows("kernels"), only.notices) == (
        read_trace(path).rows("kernels"), ("a: 1 kernel ends before it begins, left out",),
    )  # fmt: skip


def test_events_of_all_kinds_are_counted_in_one_line(tmp_path: Path) -> None:
    path = broken_export(
        tmp_path / "a.sqlite",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 1",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = start - 1 WHERE start = 2000000",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET end = -1",
        "UPDATE NVTX_EVENTS SET end = start - 1 WHERE text = 'forward' AND start = 12000000",
    )
    trace = read_trace(path)
    assert trace.notices[0] == ("a: 2 kernels, 1 memory operation, 1 call and 1 range end before they begin, left out")
    assert trace.rows("kernels") == []
    # Calls of 1 and 6 ms stay, and so do two of three ranges "forward".
    assert [(row["calls"], row["total_s"]) for row in trace.rows("cuda_api")] == [(2, pytest.approx(0.007))]
    assert [row["calls"] for row in trace.rows("ranges") if row["range"] == "forward"] == [2]


def test_a_negative_duration_of_a_pytorch_trace_is_left_out_of_tables_and_of_the_events_for_perfetto(
    tmp_path: Path,
) -> None:
    path = kineto_trace(tmp_path / "a.json")
    document = json.loads(path.read_text())
    kernel = next(event for event in document["traceEvents"] if event.get("cat") == "kernel")
    document["traceEvents"].append(kernel | {"name": "bad_kernel", "dur": -1_700_000_000_000})
    path.write_text(json.dumps(document))
    trace = read_trace(path)
    assert "bad_kernel" not in {row["kernel"] for row in trace.rows("kernels")}
    assert trace.notices[0] == "a: 1 kernel ends before it begins, left out"
    assert min(row["total_s"] for row in trace.rows("kernels")) > 0
    trace.write_perfetto(tmp_path / "events.json")
    events = json.loads((tmp_path / "events.json").read_text())["traceEvents"]
    assert "bad_kernel" not in {event["name"] for event in events}


def test_an_event_without_duration_is_one(tmp_path: Path) -> None:
    path = broken_export(tmp_path / "a.sqlite", "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start")
    trace = read_trace(path)
    assert [(row["calls"], row["total_s"]) for row in trace.rows("kernels")] == [(2, 0)]
    assert not any("left out" in notice for notice in trace.notices)
