"""Both profilers' traces become the same tables, with the sums that a hand count gives."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from multicard.core.errors import TraceError
from multicard.core.files import described, write_json
from multicard.core.layout import ACTIVITY_TABLES
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.trace.files import open_trace
from multicard.trace.tables import ACTIVITIES, CAPTURE, STEPS, activity_tables
from synthetic import MS, OTHER, PID, add_messages, global_id, kineto_trace, nsys_export


def tables(path: Path) -> dict[str, pd.DataFrame]:
    found = activity_tables([open_trace(path)])
    return {name: found.table(name).to_pandas() for name in found.rows}


@pytest.fixture(params=["nsys, text", "nsys, text id", "kineto", "kineto, gzipped"])
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same synthetic work in every form."""
    if request.param.startswith("nsys"):
        return nsys_export(tmp_path / "t.sqlite", text_column=request.param == "nsys, text")
    return kineto_trace(tmp_path / ("t.json.gz" if "gzipped" in request.param else "t.json"))


def test_phases_belong_to_the_step_that_holds_them(capture: Path) -> None:
    phases = tables(capture)["phases"]
    phases = phases[phases["process"] == PID]
    found = [
        (phase, None if pd.isna(step) else int(step))
        for phase, step in zip(phases["phase"], phases["step"], strict=True)
    ]
    assert found == [
        ("step", 1), ("forward", 1), ("backward", 1), ("forward", None), ("step", 2), ("forward", 2), ("backward", 2),
    ]  # fmt: skip
    assert phases.groupby("phase")["duration_s"].sum().to_dict() == pytest.approx(
        {"step": 0.020, "forward": 0.009, "backward": 0.010}
    )
    assert phases["start_s"].tolist() == pytest.approx([0, 0.001, 0.005, 0.012, 0.020, 0.021, 0.025])
    assert (phases["rank"] == 1).all()


def test_cuda_calls_are_summed_per_function(capture: Path) -> None:
    [row] = tables(capture)["cuda_api"].to_dict("records")
    assert (row["api"], row["function"], row["process"], row["rank"]) == ("runtime", "cudaLaunchKernel_v7000", PID, 1)
    assert row["calls"] == 3
    # 1, 2 and 6 ms; the sample variance is ((1-3)² + (2-3)² + (6-3)²) / 2 = 7.
    assert [row[f"{s}_s"] * 1e3 for s in ("total", "mean", "median", "min", "max", "std")] == pytest.approx(
        [9, 3, 2, 1, 6, 7**0.5]
    )


def test_kernels_are_summed_per_name(capture: Path) -> None:
    [row] = tables(capture)["kernels"].to_dict("records")
    assert (row["kernel"], row["class"], row["device"], row["calls"]) == ("gemm", "matrix_multiply", 2, 2)
    assert row["total_s"] == pytest.approx(0.008)


def test_memory_operations_carry_time_and_bytes_per_direction(capture: Path) -> None:
    rows = tables(capture)["memory_operations"]
    rows = rows.assign(what=rows["operation"] + " " + rows["host_memory"].fillna("-")).set_index("what")
    expected = {"host_to_device pinned": 300, "host_to_device pageable": 100, "memset -": 64}
    assert rows["bytes"].to_dict() == expected
    assert (rows["total_s"] * 1e3).to_dict() == pytest.approx(dict(zip(expected, (2, 1, 0.5), strict=True)))


def test_kernels_are_joined_to_the_calls_that_launched_them(capture: Path) -> None:
    [row] = tables(capture)["launches"].to_dict("records")
    assert (row["kernels"], row["joined"]) == (2, 2)
    # Calls at 0-1 and 2-4 ms, kernels from 1 and 6 ms: latencies 1 and 4 ms, queue delays 0 and 2 ms.
    assert row["median_latency_s"] == pytest.approx(0.0025)
    assert row["max_latency_s"] == pytest.approx(0.004)
    assert row["median_queue_delay_s"] == pytest.approx(0.001)
    assert row["max_queue_delay_s"] == pytest.approx(0.002)


def test_a_call_of_another_process_with_the_same_number_is_not_joined(tmp_path: Path) -> None:
    [row] = tables(nsys_export(tmp_path / "t.sqlite", other_calls=True))["launches"].to_dict("records")
    assert (row["joined"], row["max_latency_s"]) == (2, pytest.approx(0.004))


def test_a_timeline_counts_every_moment_once(capture: Path) -> None:
    # Kernels at 1-4 and 6-11 ms, copies at 0-1 and 3-5, a memset at 0-0.5; steps at 0-10 and 20-30.
    rows = tables(capture)["timeline"].to_dict("records")
    assert [(row["scope"], row["step"]) for row in rows][1:] == [("step", 1), ("step", 2)]
    assert rows[0]["scope"] == "capture"
    shares = ("span", "busy", "compute", "communication", "memory", "overlapped", "exposed_communication", "idle")
    found = [[row[f"{share}_s"] * 1e3 for share in shares] for row in rows]
    assert found[0] == pytest.approx([30, 10, 8, 0, 3, 0, 0, 20])
    assert found[1] == pytest.approx([10, 9, 7, 0, 3, 0, 0, 1])
    assert found[2] == pytest.approx([10, 0, 0, 0, 0, 0, 0, 10])


def test_without_kernels_nothing_is_said_of_idle_time(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        db.commit()
    row = activity_tables([open_trace(path)]).rows["timeline"][0]
    assert row["memory_s"] == pytest.approx(0.003)
    assert {row[f"{share}_s"] for share in ("busy", "compute", "communication", "idle", "idle_host_bound")} == {None}


def test_what_one_of_several_reports_lacks_is_empty_there_alone(tmp_path: Path) -> None:
    paths = [nsys_export(tmp_path / name) for name in ("whole.sqlite", "without calls.sqlite")]
    with closing(sqlite3.connect(paths[1])) as db:
        db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
        db.commit()
    rows = activity_tables([open_trace(path) for path in paths], only=["timeline"]).rows["timeline"]
    causes = {row["report"]: row["idle_other_s"] for row in rows if row["scope"] == "capture"}
    assert causes["whole"] is not None
    assert causes["without calls"] is None


def test_idle_time_has_its_causes(capture: Path) -> None:
    # Device idle at 5-6 ms, ended by the kernel launched at 2 ms: in time. Idle before 0 and after 11: nothing follows.
    first = tables(capture)["timeline"].iloc[1]
    assert [first[f"idle_{cause}_s"] * 1e3 for cause in ("host_bound", "collective", "other")] == pytest.approx(
        [0, 0, 1]
    )


def test_each_share_says_of_what(capture: Path) -> None:
    rows = tables(capture)["shares"].set_index("share")
    # 3 of 3.5 ms in memory operations; 9 of 9 ms in calls that launch, none that wait; no kernel communicates.
    assert rows["ratio"].to_dict() == pytest.approx(
        {"host_to_device_copies": 3 / 3.5, "kernel_launches": 1, "synchronizations": 0, "nccl": 0}
    )
    assert (rows["of_s"] * 1e3).to_dict() == pytest.approx(
        {"host_to_device_copies": 3.5, "kernel_launches": 9, "synchronizations": 9, "nccl": 8}
    )
    assert rows.loc["nccl", "of"] == "time of all kernels on the device"


def test_ranges_are_summed_per_name(capture: Path) -> None:
    rows = tables(capture)["ranges"]
    found = rows[rows["process"] == PID].set_index("range")
    assert found["calls"].to_dict() == {"step": 2, "forward": 3, "backward": 2}
    assert found.loc["forward", "total_s"] == pytest.approx(0.009)


def test_bandwidth_is_bytes_by_time(capture: Path) -> None:
    rows = tables(capture)["memory_operations"]
    pinned = rows[rows["host_memory"] == "pinned"].iloc[0]
    assert pinned["bandwidth_bytes_per_s"] == pytest.approx(300 / 0.002)
    assert [pinned[f"{name}_bytes"] for name in ("mean", "median", "min", "max")] == [300] * 4


def test_bus_bandwidth_follows_from_the_messages_that_nccl_told(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    add_messages(path)
    [row] = activity_tables([open_trace(path)]).rows["collectives"]
    assert (row["collective"], row["calls"], row["messages"], row["message_bytes"]) == ("all_reduce", 2, 2, 4000)
    assert row["ranks"] == 4
    # nccl-tests: size / time × 2 (n - 1) / n, here 4000 bytes in 8 ms among 4 ranks.
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(4000 / 0.008 * 2 * 3 / 4)


def test_messages_outside_of_the_steps_do_not_count_for_them(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    add_messages(path)
    with closing(sqlite3.connect(path)) as db:  # after the last step, which ends at 30 ms
        db.execute("CREATE TABLE again AS SELECT * FROM NVTX_EVENTS WHERE text = 'ncclAllReduce'")
        db.execute(f"UPDATE again SET start = {40 * MS}, end = {41 * MS}")
        db.execute("INSERT INTO NVTX_EVENTS SELECT * FROM again")
        db.commit()
    found = [activity_tables([open_trace(path)], scope=scope).rows["collectives"][0] for scope in (STEPS, CAPTURE)]
    assert [(row["messages"], row["message_bytes"]) for row in found] == [(2, 4000), (4, 8000)]


def test_samples_outside_of_the_steps_do_not_count_for_them(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT)")
        samples = [(0, 10), (15 * MS, 20), (30 * MS, 90)]  # the steps of both processes end at 30 ms
        db.executemany("INSERT INTO GPU_METRICS VALUES (?, 257, 3, ?)", samples)
        db.commit()
    found = [
        activity_tables([open_trace(path)], ["metrics"], scope=scope).rows["metrics"] for scope in (STEPS, CAPTURE)
    ]
    assert [[(row["samples"], row["mean"]) for row in rows] for rows in found] == [[(2, 15)], [(3, 40)]]


def test_times_and_bus_bandwidth_are_told_by_the_size_of_messages(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    add_messages(path)
    small, large = activity_tables([open_trace(path)]).rows["message_sizes"]
    assert [(row["collective"], row["size_bytes"], row["calls"], row["ranks"]) for row in (small, large)] == [
        ("all_reduce", 1000, 1, 4), ("all_reduce", 3000, 1, 4),
    ]  # fmt: skip
    assert (small["total_s"], large["total_s"]) == (0.003, 0.005)
    # nccl-tests: size / time × 2 (n - 1) / n.
    assert small["bus_bandwidth_bytes_per_s"] == pytest.approx(1000 / 0.003 * 2 * 3 / 4)


def test_kernels_without_a_message_each_are_not_told_apart_by_size(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    add_messages(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM NVTX_EVENTS WHERE rowid = (SELECT max(rowid) FROM NVTX_EVENTS)")
        db.commit()
    found = activity_tables([open_trace(path)])
    assert found.absent["message_sizes"] == "no collective has one message for each of its kernels"


def test_memory_in_use_follows_allocations_and_releases(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    columns = "start INT, globalPid INT, deviceId INT, bytes INT, memKind INT, memoryOperationType INT"
    events = [(0, 100, 0), (5 * MS, 50, 0), (6 * MS, 100, 1), (9 * MS, 10, 0)]  # out of order below
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({columns})")
        for start, size, what in reversed(events):
            row = (start, global_id(PID), 2, size, 2, what)
            db.execute("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
        db.commit()
    rows = activity_tables([open_trace(path)]).rows["memory_use"]
    assert [(row["start_s"], row["used_bytes"]) for row in rows] == [
        (0, 100), (pytest.approx(0.005), 150), (pytest.approx(0.006), 50), (pytest.approx(0.009), 60),
    ]  # fmt: skip
    assert {(row["process"], row["device"], row["pool"]) for row in rows} == {(PID, 2, "device")}


def test_memory_in_use_is_a_change_and_negative_where_earlier_memory_is_released(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    columns = "start INT, globalPid INT, deviceId INT, bytes INT, memKind INT, memoryOperationType INT"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({columns})")
        for start, size, what in ((0, 100, 0), (1, 300, 1), (2, 50, 0)):
            row = (start * MS, global_id(PID), 2, size, 2, what)
            db.execute("INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
        db.commit()
    rows = activity_tables([open_trace(path)]).rows["memory_use"]
    assert [row["used_bytes"] for row in rows] == [100, -200, -150]
    assert "negative" in ACTIVITIES["memory_use"].description


def test_very_many_changes_are_thinned_to_the_highest_of_neighbours(tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    document = json.loads(path.read_text())
    for at in range(5000):
        arguments = {"Device Type": 1, "Device Id": 2, "Total Allocated": 9999 if at == 777 else at}
        document["traceEvents"].append({"ph": "i", "name": "[memory]", "ts": at, "args": arguments})
    path.write_text(json.dumps(document))
    rows = activity_tables([open_trace(path)]).rows["memory_use"]
    assert len(rows) == 1000
    assert [row["start_s"] for row in rows if row["used_bytes"] == 9999] == [pytest.approx(777e-6)]


def test_memory_in_use_is_what_pytorchs_allocator_says(tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    document = json.loads(path.read_text())
    arguments = {"Device Type": 1, "Device Id": 2, "Total Allocated": 500, "Total Reserved": 900}
    document["traceEvents"].append({"ph": "i", "name": "[memory]", "ts": 7, "args": arguments})
    path.write_text(json.dumps(document))
    rows = activity_tables([open_trace(path)]).rows["memory_use"]
    assert {row["pool"]: row["used_bytes"] for row in rows} == {"torch_allocated": 500, "torch_reserved": 900}


def test_samples_of_counters_are_summed_up(tmp_path: Path) -> None:
    path = nsys_export(tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT)")
        db.execute("CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INT, metricId INT, metricName TEXT)")
        db.execute("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (257, 3, 'SMs Active [%]')")
        samples = [(1 * MS, 10), (3 * MS, 20), (2 * MS, 60)]
        db.executemany("INSERT INTO GPU_METRICS VALUES (?, 257, 3, ?)", samples)
        db.commit()
    found = activity_tables([open_trace(path)]).rows
    over_time = [(row["start_s"], row["mean"], row["samples"]) for row in found["metric_samples"]]
    assert over_time == [(0, 10, 1), (pytest.approx(0.001), 60, 1), (pytest.approx(0.002), 20, 1)]
    [row] = found["metrics"]
    assert (row["device"], row["metric"], row["samples"], row["process"]) == (1, "SMs Active [%]", 3, None)
    assert (row["mean"], row["median"], row["min"], row["max"]) == (30, 20, 10, 60)


def test_steps_that_carry_a_number_are_steps_and_those_inside_them_are_not(tmp_path: Path) -> None:
    path = kineto_trace(tmp_path / "t.json")
    document = json.loads(path.read_text())
    for number, event in enumerate(e for e in document["traceEvents"] if e["name"] == "step" and "tid" in e):
        event["name"] = f"ProfilerStep#{number}"
    inner = {"ph": "X", "cat": "user_annotation", "name": "iteration 7", "pid": PID, "tid": 7, "ts": 2000, "dur": 10}
    document["traceEvents"].append(inner)
    path.write_text(json.dumps(document))
    rows = activity_tables([open_trace(path)]).rows["phases"]
    assert [row["duration_s"] for row in rows if row["phase"] == "step"] == pytest.approx([0.01, 0.01])


def test_fewer_tables_can_be_asked_for(capture: Path) -> None:
    found = activity_tables([open_trace(capture)], only=["kernels", "memory_use"])
    assert set(found.rows) == {"kernels"}
    assert set(found.absent) == {"memory_use"}
    assert found.rows["kernels"] == activity_tables([open_trace(capture)]).rows["kernels"]


def test_a_range_that_was_still_open_is_left_out(tmp_path: Path) -> None:
    phases = tables(nsys_export(tmp_path / "t.sqlite"))["phases"]
    assert (phases["process"] == OTHER).sum() == 1


def test_what_was_not_captured_is_absent_not_zero(tmp_path: Path) -> None:
    trace = open_trace(nsys_export(tmp_path / "t.sqlite", cuda=False))
    assert set(trace.absent) == {"api", "kernels", "memory", "messages", "memory_use", "metrics"}
    found = activity_tables([trace])
    assert set(found.rows) == {"phases", "ranges"}
    assert set(found.absent) == set(ACTIVITIES) - {"phases", "ranges"}


def test_the_tables_have_the_columns_they_promise(capture: Path) -> None:
    found = activity_tables([open_trace(capture)])
    for name, rows in found.rows.items():
        assert all(list(row) == ACTIVITIES[name].schema.names for row in rows), name
        assert found.table(name).num_rows == len(rows)


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
        ("t.sqlite", b"", "it has no table StringIds"),
        ("t.json", b"{half", "not a readable PyTorch profiler trace"),
        ("t.json", b"[]", "no trace of PyTorch's profiler: its JSON has no list traceEvents of events"),
        ("t.json.gz", b"not gzip", "not a readable PyTorch profiler trace"),
        ("t.txt", b"", "expected .sqlite, .json or .json.gz"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=says):
        open_trace(tmp_path / name)


def test_the_rules_know_every_table() -> None:
    assert tuple(ACTIVITIES) == ACTIVITY_TABLES


def captured(folder: Path, *files: Path, missing: str | None = None) -> Path:
    """A run directory that holds a capture."""
    (folder / "trace").mkdir(parents=True)
    kept = [Path(shutil.copy(file, folder / "trace")) for file in files]
    write_json(
        folder / "trace" / "captured.json",
        {"profiler": "kineto", "missing": missing, "files": [described(file) for file in kept]},
    )
    write_json(folder / "run.json", {"ranks": [{"rank": 5, "pid": OTHER}]})
    return folder


def extracted(folder: Path) -> tuple[dict, pd.DataFrame]:
    export_run(folder)
    extract_run(folder)
    index = json.loads((folder / "activity" / "tables.json").read_text())
    return index["tables"], pd.read_parquet(folder / "activity" / "phases.parquet")


def test_a_run_gets_every_table_and_an_index_of_them(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", kineto_trace(tmp_path / "rank1.json.gz"))
    index, phases = extracted(run)
    assert {name: entry["rows"] for name, entry in index.items()} == {
        "phases": 7, "ranges": 3, "cuda_api": 1, "synchronizations": 0, "kernels": 1, "kernel_shapes": 1,
        "kernel_classes": 1, "launches": 1, "collectives": 0, "message_sizes": 0, "stragglers": 0,
        "memory_operations": 3, "memory_use": 0, "metrics": 0, "metric_samples": 0, "timeline": 3, "shares": 4,
    }  # fmt: skip
    assert len(phases) == 7


def test_a_run_without_a_trace_gets_empty_tables_and_the_reason(tmp_path: Path) -> None:
    index, phases = extracted(captured(tmp_path / "run", missing="the run ended as diverged"))
    assert {entry["absent"] for entry in index.values()} == {"the run ended as diverged"}
    assert phases.empty
    assert "duration_s" in phases


def test_a_trace_that_changed_since_its_capture_is_not_read(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", kineto_trace(tmp_path / "rank1.json"))
    with (run / "trace" / "rank1.json").open("a") as file:
        file.write(" ")
    index, _ = extracted(run)
    assert index["phases"]["absent"] == "rank1.json is missing or not what was captured"


def test_the_record_names_the_rank_of_a_process_that_did_not_mark_itself(tmp_path: Path) -> None:
    run = captured(tmp_path / "run", kineto_trace(tmp_path / "rank1.json", rank=None))
    document = json.loads((run / "run.json").read_text())
    document["ranks"] = [{"rank": 5, "pid": PID}]
    write_json(run / "run.json", document)
    _, phases = extracted(run)
    assert set(phases["rank"]) == {5}
