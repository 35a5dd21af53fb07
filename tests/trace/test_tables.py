"""Both profilers' traces become the same tables, with the sums that a hand count gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from changed_traces import Rows, change, change_events, rows_of
from factories import make_run
from multicard.config.read_run import read_run
from multicard.core.errors import TraceError
from multicard.core.files import described, write_json
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.trace.files import open_trace
from multicard.trace.idle import CAUSES
from multicard.trace.tables import ACTIVITIES, CAPTURE, SCOPES, STEPS, activity_tables
from synthetic import MS, OTHER, PID, add_messages, kineto_trace, nsys_export

STATISTICS = ("total", "mean", "median", "min", "max", "std")


def changed_export(path: Path, *changes: str, messages: bool = False, **options: Any) -> Path:
    """The export of nsys, after some statements of SQL."""
    nsys_export(path, **options)
    if messages:
        add_messages(path)
    return change(path, *changes)


@pytest.fixture(params=["nsys, text", "nsys, text id", "kineto", "kineto, gzipped"])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same synthetic work in every form."""
    if request.param.startswith("nsys"):
        return nsys_export(tmp_path / "t.sqlite", text_column=request.param == "nsys, text")
    return kineto_trace(tmp_path / ("t.json.gz" if "gzipped" in request.param else "t.json"))


def test_tables_of_either_profiler_have_the_sums_of_a_hand_count(capture: Path) -> None:
    found = activity_tables([open_trace(capture)])
    tables = {name: found.table(name).to_pandas() for name in found.rows}
    for name, rows in found.rows.items():
        assert all(list(row) == ACTIVITIES[name].schema.names for row in rows), name

    # Phases belong to the step that holds them.
    phases = tables["phases"]
    phases = phases[phases["process"] == PID]
    steps = [None if pd.isna(step) else int(step) for step in phases["step"]]
    assert list(zip(phases["phase"], steps, strict=True)) == [
        ("step", 1), ("forward", 1), ("backward", 1), ("forward", None), ("step", 2), ("forward", 2), ("backward", 2),
    ]  # fmt: skip
    durations = phases.groupby("phase")["duration_s"].sum().to_dict()
    assert durations == pytest.approx({"step": 0.020, "forward": 0.009, "backward": 0.010})
    assert phases["start_s"].tolist() == pytest.approx([0, 0.001, 0.005, 0.012, 0.020, 0.021, 0.025])
    assert (phases["rank"] == 1).all()
    ranges = tables["ranges"]
    ranges = ranges[ranges["process"] == PID].set_index("range")
    assert ranges["calls"].to_dict() == {"step": 2, "forward": 3, "backward": 2}
    assert ranges.loc["forward", "total_s"] == pytest.approx(0.009)

    # Calls of 1, 2 and 6 ms; the sample variance is ((1-3)² + (2-3)² + (6-3)²) / 2 = 7.
    [row] = found.rows["cuda_api"]
    assert (row["api"], row["function"], row["process"], row["rank"]) == ("runtime", "cudaLaunchKernel", PID, 1)
    assert row["calls"] == 3
    assert [row[f"{s}_s"] * 1e3 for s in STATISTICS] == pytest.approx([9, 3, 2, 1, 6, 7**0.5])
    [row] = found.rows["kernels"]
    assert (row["kernel"], row["class"], row["device"], row["calls"]) == ("gemm", "matrix_multiply", 2, 2)
    assert row["total_s"] == pytest.approx(0.008)
    # Calls at 0-1 and 2-4 ms, kernels from 1 and 6 ms: latencies 1 and 4 ms, queue delays 0 and 2 ms.
    [row] = found.rows["launches"]
    assert (row["kernels"], row["joined"]) == (2, 2)
    delays = ("median_latency", "max_latency", "median_queue_delay", "max_queue_delay")
    assert [row[f"{name}_s"] * 1e3 for name in delays] == pytest.approx([2.5, 4, 1, 2])

    rows = tables["memory_operations"]
    rows = rows.assign(what=rows["operation"] + " " + rows["host_memory"].fillna("-")).set_index("what")
    expected = {"host_to_device pinned": 300, "host_to_device pageable": 100, "memset -": 64}
    assert rows["bytes"].to_dict() == expected
    assert (rows["total_s"] * 1e3).to_dict() == pytest.approx(dict(zip(expected, (2, 1, 0.5), strict=True)))
    pinned = rows.loc["host_to_device pinned"]
    assert pinned["bandwidth_bytes_per_s"] == pytest.approx(300 / 0.002)
    assert [pinned[f"{name}_bytes"] for name in ("mean", "median", "min", "max")] == [300] * 4


@pytest.mark.parametrize("scope", SCOPES)
def test_a_table_alone_is_the_one_among_all(capture: Path, scope: str) -> None:
    whole = activity_tables([open_trace(capture)], scope=scope).rows
    for name, rows in whole.items():
        assert activity_tables([open_trace(capture)], [name], scope=scope).rows == {name: rows}


def test_numbers_that_json_has_no_words_for_are_not_known(tmp_path: Path) -> None:
    plain, path = kineto_trace(tmp_path / "a.json"), tmp_path / "t.json"
    path.write_text(plain.read_text().replace('"ph": "X"', '"high": NaN, "low": -Infinity, "ph": "X"'))
    assert "NaN" in path.read_text()
    named = [{**row, "report": "a"} for row in rows_of(path)["kernels"]]
    assert named == rows_of(plain)["kernels"]


def test_timelines_and_shares_have_those_of_a_hand_count(capture: Path) -> None:
    # Kernels at 1-4 and 6-11 ms, copies at 0-1 and 3-5, a memset at 0-0.5; steps at 0-10 and 20-30.
    found = rows_of(capture)
    whole, first, second = found["timeline"]
    assert [(row["scope"], row["step"]) for row in (whole, first, second)] == [
        ("capture", None), ("step", 1), ("step", 2),
    ]  # fmt: skip
    parts = ("span", "busy", "compute", "communication", "memory", "overlapped", "exposed_communication", "idle")
    assert [whole[f"{part}_s"] * 1e3 for part in parts] == pytest.approx([30, 10, 8, 0, 3, 0, 0, 20])
    assert [first[f"{part}_s"] * 1e3 for part in parts] == pytest.approx([10, 9, 7, 0, 3, 0, 0, 1])
    assert [second[f"{part}_s"] * 1e3 for part in parts] == pytest.approx([10, 0, 0, 0, 0, 0, 0, 10])
    # Device idle at 5-6 ms, ended by the kernel launched at 2 ms: in time. Idle before 0 and after 11: nothing follows.
    assert {cause: first[f"{cause}_s"] * 1e3 for cause in CAUSES if first[f"{cause}_s"]} == {
        "idle_queued": pytest.approx(1)
    }
    # 3 of 3.5 ms in memory operations; 9 of 9 ms in calls that launch, none that wait; no kernel communicates.
    shares = {row["share"]: row for row in found["shares"]}
    assert {name: (row["ratio"], row["of_s"] * 1e3) for name, row in shares.items()} == {
        "host_to_device_copies": pytest.approx((3 / 3.5, 3.5)),
        "kernel_launches": pytest.approx((1, 9)),
        "synchronizations": pytest.approx((0, 9)),
        "nccl": pytest.approx((0, 8)),
    }
    assert shares["nccl"]["of"] == "time of all kernels on the device"


def test_a_function_of_the_host_that_a_stream_calls_is_no_kernel_launch(tmp_path: Path) -> None:
    # Calls of 1, 2 and 6 ms; the last launches a graph. Only the second hands a function of the host to a stream.
    path = changed_export(
        tmp_path / "t.sqlite",
        "INSERT INTO StringIds VALUES (20, 'cudaLaunchHostFunc_v10000'), (21, 'cudaGraphLaunch_v10000')",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 20 WHERE correlationId = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 21 WHERE correlationId = 2",
    )
    [ratio] = [row["ratio"] for row in rows_of(path)["shares"] if row["share"] == "kernel_launches"]
    assert ratio == pytest.approx(7 / 9)


def test_copies_between_the_host_and_arrays_have_host_memory(tmp_path: Path) -> None:
    # CUpti_ActivityMemcpyKind: 3 is a copy from the host to an array, 4 one from an array to the host.
    # CUpti_ActivityMemoryKind as nsys lists it: 3 is an array.
    path = changed_export(
        tmp_path / "t.sqlite",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 3, dstKind = 3 WHERE bytes = 100",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 4, srcKind = 3, dstKind = 1 WHERE bytes = 300",
    )
    copies = {(row["operation"], row["host_memory"]): row["bytes"] for row in rows_of(path)["memory_operations"]}
    assert copies == {("host_to_device", "pageable"): 100, ("device_to_host", "pinned"): 300, ("memset", None): 64}


def test_a_bandwidth_is_that_of_the_copies_whose_size_is_known(tmp_path: Path) -> None:
    # Of two copies of pinned memory, the one of 2 ms has 300 bytes, and the size of the one of 1 ms is not known.
    path = changed_export(
        tmp_path / "t.sqlite",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = NULL WHERE bytes = 100",
    )
    [copies] = [row for row in rows_of(path)["memory_operations"] if row["operation"] == "host_to_device"]
    assert (copies["calls"], copies["bytes"]) == (2, 300)
    assert copies["bandwidth_bytes_per_s"] == pytest.approx(300 / 0.002)


def test_a_call_of_another_process_with_the_same_number_is_not_joined(tmp_path: Path) -> None:
    [row] = rows_of(nsys_export(tmp_path / "t.sqlite", other_calls=True))["launches"]
    assert (row["joined"], row["max_latency_s"]) == (2, pytest.approx(0.004))


def test_what_was_not_captured_is_absent_not_zero(tmp_path: Path) -> None:
    trace = open_trace(nsys_export(tmp_path / "no cuda.sqlite", cuda=False))
    assert set(trace.absent) == {"api", "graphs", "host_calls", "kernels", "memory", "messages"}
    found = activity_tables([trace])
    assert set(found.rows) == {"phases", "ranges"}
    assert set(found.absent) == set(ACTIVITIES) - {"phases", "ranges"}
    [other] = [row for row in found.rows["phases"] if row["process"] == OTHER]  # the range that was open is left out
    assert other["duration_s"] == pytest.approx(0.020)

    # Without kernels nothing is said of idle time.
    path = changed_export(tmp_path / "no kernels.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    row = rows_of(path)["timeline"][0]
    assert row["memory_s"] == pytest.approx(0.003)
    assert {row[f"{share}_s"] for share in ("busy", "compute", "communication", "idle", "idle_launching")} == {None}

    # What one of several reports lacks is empty there alone.
    paths = [
        nsys_export(tmp_path / "whole.sqlite"),
        changed_export(tmp_path / "without calls.sqlite", "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"),
    ]
    rows = activity_tables([open_trace(path) for path in paths], only=["timeline"]).rows["timeline"]
    causes = {row["report"]: row["idle_unknown_s"] for row in rows if row["scope"] == "capture"}
    assert causes["whole"] is not None
    assert causes["without calls"] is None


# nccl-tests: the bus bandwidth of an all-reduce among n ranks is size / time × 2 (n - 1) / n.
BUS = 2 * 3 / 4


def test_bus_bandwidth_follows_from_the_messages_that_nccl_told(tmp_path: Path) -> None:
    found = rows_of(changed_export(tmp_path / "t.sqlite", messages=True))
    [row] = found["collectives"]
    assert (row["collective"], row["calls"], row["messages"], row["message_bytes"]) == ("all_reduce", 2, 2, 4000)
    assert row["ranks"] == 4
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(4000 / 0.008 * BUS)
    small, large = found["message_sizes"]
    names = ("collective", "size_bytes", "calls", "ranks", "total_s")
    assert [small[name] for name in names] == ["all_reduce", 1000, 1, 4, 0.003]
    assert [large[name] for name in names] == ["all_reduce", 3000, 1, 4, 0.005]
    assert small["bus_bandwidth_bytes_per_s"] == pytest.approx(1000 / 0.003 * BUS)

    # Kernels without a message each are not told apart by size.
    one_less = "DELETE FROM NVTX_EVENTS WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)"
    lacking = activity_tables([open_trace(changed_export(tmp_path / "less.sqlite", one_less, messages=True))])
    assert lacking.absent["message_sizes"] == "no collective has one message for each of its kernels"


def test_messages_outside_of_the_steps_do_not_count_for_them(tmp_path: Path) -> None:
    # After the last step, which ends at 30 ms, both are called again and run again.
    again = (
        "CREATE TABLE again AS SELECT * FROM NVTX_EVENTS WHERE text = 'ncclAllReduce'",
        f"UPDATE again SET start = {40 * MS}, end = {41 * MS}",
        "INSERT INTO NVTX_EVENTS SELECT * FROM again",
        "CREATE TABLE rerun AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL",
        f"UPDATE rerun SET start = start + {50 * MS}, end = end + {50 * MS}, correlationId = correlationId + 100",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM rerun",
    )
    path = changed_export(tmp_path / "t.sqlite", *again, messages=True)
    found = [rows_of(path, scope=scope) for scope in (STEPS, CAPTURE)]
    collectives = [tables["collectives"][0] for tables in found]
    assert [(row["messages"], row["message_bytes"]) for row in collectives] == [(2, 4000), (4, 8000)]


def test_steps_that_carry_a_number_are_steps_and_those_inside_them_are_not(tmp_path: Path) -> None:
    inner = {"ph": "X", "cat": "user_annotation", "name": "iteration 7", "pid": PID, "tid": 7, "ts": 2000, "dur": 10}

    def edit(events: Rows) -> None:
        for number, event in enumerate(e for e in events if e["name"] == "step" and "tid" in e):
            event["name"] = f"ProfilerStep#{number}"
        events.append(inner)

    rows = rows_of(change_events(kineto_trace(tmp_path / "t.json"), edit))["phases"]
    assert [row["duration_s"] for row in rows if row["phase"] == "step"] == pytest.approx([0.01, 0.01])


def test_files_of_several_ranks_make_one_capture(tmp_path: Path) -> None:
    files = nsys_export(tmp_path / "a.sqlite", cuda=False), kineto_trace(tmp_path / "b.json")
    found = activity_tables([open_trace(file) for file in files])
    phases = found.table("phases").to_pandas()
    assert phases.groupby("report").size().to_dict() == {"a": 8, "b": 7}
    assert {(row["report"], row["process"], row["rank"]) for row in found.rows["phases"]} == {
        ("a", PID, 1), ("a", OTHER, 0), ("b", PID, 1),
    }  # fmt: skip
    assert {row["report"] for row in found.rows["kernels"]} == {"b"}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.sqlite", b"garbage" * 100, "not a readable SQLite database"),
        ("t.sqlite", b"", "is empty"),
        ("t.json", b"{half", "not a readable PyTorch profiler trace"),
        ("t.json", b"[]", "no trace of PyTorch's profiler: its JSON has no list traceEvents of events"),
        ("t.json.gz", b"not gzip", "not a readable PyTorch profiler trace"),
        ("t.txt", b"text", "expected .nsys-rep, .qdrep, .sqlite, .json or .json.gz"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=says):
        open_trace(tmp_path / name)


def captured(folder: Path, *files: Path, missing: str | None = None) -> Path:
    """A run directory that holds a capture of process `PID`, which is rank 5 by the record."""
    (folder / "trace").mkdir(parents=True)
    kept = [Path(shutil.copy(file, folder / "trace")) for file in files]
    write_json(
        folder / "trace" / "captured.json",
        {"profiler": "kineto", "missing": missing, "files": [described(file) for file in kept]},
    )
    write_json(folder / "run.json", make_run(ranks=[{"rank": 5, "pid": PID}]).as_json())
    return folder


def extracted(folder: Path) -> tuple[dict, pd.DataFrame]:
    export_run(folder)
    extract_run(folder, read_run(folder).ranks)
    index = json.loads((folder / "activity" / "tables.json").read_text())
    return index["tables"], pd.read_parquet(folder / "activity" / "phases.parquet")


def test_a_run_gets_every_table_and_an_index_of_them(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", kineto_trace(tmp_path / "rank1.json.gz", rank=None))
    index, phases = extracted(run)
    assert tuple(index) == tuple(ACTIVITIES)
    assert {name: entry["rows"] for name, entry in index.items() if entry["rows"]} == {
        "phases": 7, "ranges": 3, "cuda_api": 1, "kernels": 1, "kernel_classes": 1, "launches": 1,
        "memory_operations": 3, "timeline": 3, "shares": 4,
    }  # fmt: skip
    assert len(phases) == 7
    assert set(phases["rank"]) == {5}  # of a process that did not mark itself


def test_a_run_without_a_trace_or_with_another_one_gets_empty_tables_and_the_reason(tmp_path: Path) -> None:
    index, phases = extracted(captured(tmp_path / "none", missing="the run ended as diverged"))
    assert {entry["absent"] for entry in index.values()} == {"the run ended as diverged"}
    assert phases.empty
    assert "duration_s" in phases
    run = captured(tmp_path / "changed", kineto_trace(tmp_path / "rank1.json"))
    with (run / "trace" / "rank1.json").open("a") as file:
        file.write(" ")
    index, _ = extracted(run)
    assert index["phases"]["absent"] == "rank1.json is missing or not what was captured"
