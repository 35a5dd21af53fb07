"""The GPU check judges runs of known truth; its configuration has all strategies and techniques, in 40 minutes."""

import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import check as gpu_check
import pandas as pd
import pyarrow as pa
import pytest
from check import CONFIG, TABLES, around, estimated_s, judge_all, leave, stretches
from rows import (
    EVENTS_TRACED,
    OF_SCENARIO,
    OUT_OF_MEMORY,
    binding_faults,
    estimate_faults,
    judge,
    largest_part,
    power_and_conditions,
    required_collectives,
    step_quotients,
)
from snakemake.utils import update_config

from multicard.archive.matrix import Matrix
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.layout import PHASES
from multicard.experiment.load import check, read_yaml
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import JobParameters, run_id
from multicard.experiment.runs import Run, distinct, expand
from multicard.trace.extract import extract_run
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.technique import TECHNIQUES
from multicard.workloads.script.parameters import ScriptParameters
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.strategy import STRATEGIES
from synthetic import OTHER, PID, training_trace

GEMM, ALL_REDUCE = "gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
# Milliseconds of the host's steps, of kernels with the call that launches each, and of the steps by CUDA events.
HOST = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, 34.0)]
STARTS = [1.0, 9.0, 17.0, 25.0]
WORK = [
    work
    for number, start in enumerate(STARTS)
    for work in (
        (2 * number + 0.5, start, start + 6, GEMM),
        (2 * number + 0.8, start + 6, start + 8, ALL_REDUCE),
    )
]
DEVICE_MS = [9.0, 8.0, 8.0, 9.0]
METER = {"energy_j": 3.0, "duration_s": 0.1, "reason": None}
CONDITIONS = {"after": {"sm_clock_mhz": 1400.0, "power_limit_w": 100.0}, "clock_reasons": [], "held_back_s": None}
P = VisionParameters(strategy="ddp-ds", devices=2, epochs=1, batch_size=4, profiled_steps=4)


def ranks_with(first: dict[str, Any], second: dict[str, Any], pid: int = OTHER) -> list[dict[str, Any]]:
    """The record's ranks with these meters; the trace has the process of the second one as `OTHER`."""
    own = ((PID, first), (pid, second))
    return [
        {"rank": rank, "pid": pid, "energy": [meter], "gpu_conditions": [CONDITIONS]}
        for rank, (pid, meter) in enumerate(own)
    ]


def judged(
    folder: Path,
    p: JobParameters = P,
    work: dict[int, Any] | None = None,
    marks: dict[int, Any] | None = None,
    longer: float = 1.0,
    meter: dict[str, Any] = METER,
    scenario: str = "",
    **record: Any,
) -> dict[str, Any]:
    """The row of a run on two GPUs with a trace; its parameters set what the record has in other ways."""
    (folder / "trace").mkdir(parents=True)
    pids = (PID, OTHER)
    marks, work = marks or dict.fromkeys(pids, HOST), work or dict.fromkeys(pids, WORK)
    training_trace(folder / "trace" / "report.sqlite", marks, work)
    exported = {"profiler": "nsys", "missing": None, "files": [{"name": "report.sqlite"}]}
    write_json(folder / "trace" / "exported.json", exported)
    facts = {"run": run_id(p), "outcome": "completed", "reason": None, "parameters": p.model_dump(), "wall_time_s": 9.0}
    facts |= {
        "profiler": {"used": "nsys", "trace_missing": None},
        "steps_per_pass": 9,
        "hardware": {"gpus": []},
        "ranks": ranks_with(meter, meter),
    }
    write_json(folder / "run.json", facts | record)
    seconds = [each / 1e3 for each in (8.0, 8.0, *(longer * each for each in DEVICE_MS))]
    windows = ["measured"] * 2 + ["profiled"] * len(DEVICE_MS)
    starts = [sum(seconds[:number]) for number in range(len(seconds))]
    steps = pd.DataFrame({"step": range(1, 7), "window": windows, "start_s": starts, "duration_s": seconds, "epoch": 1})
    steps = steps.assign(**{f"{phase}_s": seconds if phase == "forward" else 0.0 for phase in PHASES})
    steps = steps.assign(samples=4, loss=1.0, peak_memory_bytes=1e9, peak_reserved_bytes=1e9)
    steps = steps.assign(tokens=4, padded_tokens=4) if p.workload == "llm" else steps
    pd.concat([steps.assign(rank=rank) for rank in range(2)]).to_csv(folder / "steps.csv", index=False)
    epoch = {"epoch": 1, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5, "epoch_time_s": 1.0}
    pd.DataFrame([epoch]).to_csv(folder / "epochs.csv", index=False)
    extract_run(folder)
    return judge(Run(run_id(p), p), folder, scenario)


# Of a small language model, whose estimate is far below the peak that the steps above state.
OF_LLM: dict[str, Any] = {
    "p": LlmParameters(devices=2, sequence_length=16, profiled_steps=4),
    "ranks": ranks_with(METER, METER),
    "model": {"architecture": "tiny"},
    "hardware": {"gpus": []},
}


def test_a_run_whose_record_agrees_with_its_trace_passes(tmp_path: Path) -> None:
    row = judged(tmp_path)
    assert (row["result"], row["remarks"]) == ("passed", "")
    assert (row["steps"], row["traced_steps"]) == (8, 8)
    assert (row["kernels_per_step"], row["communication_per_step"]) == (2, 1)
    assert row["trace_to_record"] == pytest.approx(1)
    assert row["energy_per_sample_j"] == pytest.approx(2 * 3.0 / (2 * 2 * 4))
    assert row["mean_power_w"] == pytest.approx(2 * 3.0 / 0.2)
    assert row["overlapped_share"] == 0
    assert row["first_profiled_step"] == pytest.approx(9 / 8)


EDGE = 1000
PRODUCT = ScriptParameters(command=("products.py", "{edges}", "{load_ms}"), args={"edges": EDGE, "load_ms": 0})
SEEN = {  # of one GPU with a limit of 100 W
    "flop_per_step": 6e9, "mfu": 0.5, "mean_power_w": 90.0, "first_profiled_step": 1.1,
}  # fmt: skip


class Files:
    """Activity tables of a run, and its record, as stated."""

    def __init__(self, rows: list[dict[str, Any]] | None = None, **record: Any):
        self._rows, self.record = rows, record

    def has_activity(self, _name: str) -> bool:
        """Whether rows were stated."""
        return self._rows is not None

    def activity(self, _name: str, columns: list[str]) -> pa.Table:
        """The rows."""
        return pa.table(pd.DataFrame(self._rows, columns=columns))


@pytest.mark.parametrize(
    ("changes", "is_real", "faults"),
    [
        ({}, True, []),
        ({"mfu": None}, True, []),  # no peak is known of the GPU
        ({"mfu": 1e-9, "first_profiled_step": 9.0}, False, []),
        ({"flop_per_step": 4e9}, False, ["4000000000.0 operations in a step, expected 6000000000"]),
        ({"flop_per_step": None}, True, ["no operations in a step, expected 6000000000"]),
        ({"mfu": 1.2}, True, ["MFU is 1.2, expected 0.05 to 1"]),
        ({"mfu": 0.04}, True, ["MFU is 0.04, expected 0.05 to 1"]),
        ({"mean_power_w": 200.0}, True, ["mean power to its limit is 2, expected 0.1 to 1.1"]),
        ({"mean_power_w": None}, True, ["mean power to its limit is not known, expected 0.1 to 1.1"]),
        ({"first_profiled_step": 3.0}, True, ["the first profiled step to the others is 3, expected 0.5 to 1.5"]),
    ],
)
def test_a_known_matrix_product_must_have_its_operations_and_what_a_real_gpu_can_do(
    changes: dict[str, Any], is_real: bool, faults: list[str]
) -> None:
    files = Files(ranks=[{"gpu_conditions": [CONDITIONS]}])
    assert OF_SCENARIO["matrix_product"](PRODUCT, SEEN | changes, files, is_real) == faults


def test_the_largest_part_of_a_step_must_be_what_the_loader_makes_it() -> None:
    loads = PRODUCT.model_copy(update={"args": {"edges": EDGE, "load_ms": 30}})
    parts = {"data_loading_share": 0.6, "compute_share": 0.4}
    assert largest_part(parts) == "data loading"
    assert largest_part({}) is None
    for p, part, faults in (
        (loads, "data loading", []),
        (PRODUCT, "compute", []),
        (loads, "compute", ["the largest part of a step is compute, expected data loading"]),
        (PRODUCT, None, ["the largest part of a step is None, expected compute"]),
        (PRODUCT, "stalls", ["the largest part of a step is stalls, expected compute"]),
    ):
        assert OF_SCENARIO["loading"](p, {"largest_part": part}, Files(), True) == faults
    for part, passes in (("stalls", True), ("data loading", False), (None, False)):
        faults = OF_SCENARIO["loading"](PRODUCT, {"largest_part": part}, Files(), False)
        assert (faults == []) is passes, "of a GPU that is not real"


def test_most_bytes_must_be_copied_from_the_kind_of_memory_that_is_asked_for() -> None:
    copies = [
        {"operation": "host_to_device", "host_memory": "pageable", "bytes": 8},
        {"operation": "host_to_device", "host_memory": "pinned", "bytes": 800},
        {"operation": "device_to_host", "host_memory": "pageable", "bytes": 8000},
    ]
    for pins, rows, faults in (
        (True, copies, []),
        (False, copies, ["most bytes are copied from pinned memory, expected pageable"]),
        (False, copies[:1], []),
        (True, copies[:1], ["most bytes are copied from pageable memory, expected pinned"]),
        (True, [], ["most bytes are copied from no known memory, expected pinned"]),
    ):
        p = VisionParameters(pin_memory=pins)
        assert OF_SCENARIO["pinned"](p, {}, Files(rows), True) == faults


def sizes_of(times: dict[int, float]) -> list[dict[str, Any]]:
    """All-reduces of two ranks, of which the second waited for the first."""
    rows = [{"size_bytes": size, "min_s": wait * time} for wait in (1, 3) for size, time in times.items()]
    return [row | {"collective": "all_reduce"} for row in rows]


@pytest.mark.parametrize(
    ("times", "is_real", "faults"),
    [
        # 10 µs and 1 ns for each hundred bytes: 100 GB/s.
        ({20_000: 10.2e-6, 2_000_000: 30e-6}, True, []),
        ({20_000: 1.0, 2_000_000: 1.0}, False, []),
        ({20_000: 10e-3, 2_000_000: 11e-3}, True, ["latency_s is 0.00999, expected 0 to 0.001"]),
        (
            {20_000: 30e-6, 2_000_000: 30e-6},
            True,
            ["bandwidth_bytes_per_s is not known, expected 5e+08 to 1e+12"],
        ),
        ({20_000: 1e-6}, False, ["all-reduces of [20000] bytes, expected [20000, 2000000]"]),
        ({}, False, ["all-reduces of no known bytes, expected [20000, 2000000]"]),
    ],
)
def test_latency_and_bandwidth_follow_from_all_reduces_of_two_sizes(
    times: dict[int, float], is_real: bool, faults: list[str]
) -> None:
    p, row = PRODUCT.model_copy(update={"args": {"edges": "100,1000", "load_ms": 0}}), {}
    assert OF_SCENARIO["all_reduce"](p, row, Files(sizes_of(times)), is_real) == faults
    if not faults and is_real:
        assert row == pytest.approx({"latency_s": 10e-6, "bandwidth_bytes_per_s": 100e9})
    assert OF_SCENARIO["all_reduce"](p, {}, Files(), is_real) == [
        "all-reduces of no known bytes, expected [20000, 2000000]"
    ]


@pytest.mark.parametrize(("share", "is_real", "is_wrong"), [(0.4, True, False), (0.0, True, True), (0.0, False, False)])
def test_communication_in_buckets_must_be_overlapped_on_a_real_gpu(share: float, is_real: bool, is_wrong: bool) -> None:
    assert bool(OF_SCENARIO["overlap"](P, {"overlapped_share": share}, Files(), is_real)) is is_wrong


def test_the_last_of_many_short_steps_must_last_as_long_as_the_first_on_a_real_gpu() -> None:
    fault = ["the last measured steps to the first is 2, expected 0.8 to 1.25"]
    for quotient, is_real, faults in ((1.1, True, []), (2.0, True, fault), (2.0, False, [])):
        assert OF_SCENARIO["script"](P, {"last_measured_steps": quotient}, Files(), is_real) == faults


def test_steps_are_compared_by_the_slowest_rank() -> None:
    seconds = [1.0] * 10 + [2.0] * 10 + [6.0, 2.0, 4.0, 3.0]
    windows = ["measured"] * 20 + ["profiled"] * 4
    steps = pd.DataFrame({"step": range(24), "window": windows, "duration_s": seconds})
    both = pd.concat([steps, steps.assign(duration_s=0.5)])
    assert step_quotients(both) == {"first_profiled_step": 6 / 3, "last_measured_steps": 2.0}


def test_what_the_launcher_sampled_must_tell_clocks_and_throttling() -> None:
    [first, second] = ranks_with(METER, METER)
    assert power_and_conditions([first, second]) == (pytest.approx(30.0), [])
    nothing = CONDITIONS | {"clock_reasons": None}
    assert power_and_conditions([first, second | {"energy": [], "gpu_conditions": [nothing]}]) == (
        pytest.approx(30.0),
        ["rank 1: nothing is recorded of its GPU's throttling"],
    )
    assert power_and_conditions([{"rank": 0}]) == (
        None,
        ["rank 0: nothing is recorded of its GPU's clocks and throttling"],
    )


def test_a_memory_estimate_must_be_near_the_peak() -> None:
    for estimate in (76, 100, 124):
        assert estimate_faults(estimate, 100) == []
    assert estimate_faults(74, 100) == ["the memory estimate is 0.74 of the peak"]
    assert estimate_faults(126, 100) == ["the memory estimate is 1.26 of the peak"]
    assert estimate_faults(100, None) == ["no peak of memory is recorded"]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"work": {PID: WORK, OTHER: []}}, "kernels on 1 GPUs, expected 2"),
        (
            {"work": {pid: [each for each in WORK if each[3] == GEMM] for pid in (PID, OTHER)}},
            "kernels of all_reduce on 0 GPUs, expected 2",
        ),
        ({"marks": {PID: HOST, OTHER: HOST[:3]}}, "steps of the processes: [3, 4] in the trace, [4, 4] in the record"),
        ({"longer": 1.2}, "the trace's steps last 83.3% of the record's"),
        (
            {"meter": METER | {"energy_j": None, "reason": "Not Supported"}},
            "energy of 0 GPUs, expected 2: Not Supported",
        ),
        *(
            ({"meter": METER | {"energy_j": joules}}, "energy of 0 GPUs, expected 2: the counter did not rise")
            for joules in (-3.0, math.nan)
        ),
        ({"ranks": ranks_with(METER, METER | {"energy_j": 0.0})}, "energy of 1 GPUs, expected 2"),
        ({"ranks": ranks_with(METER, METER, OTHER + 1)}, "in both the trace and the record: [1]"),
        (
            {"p": P.model_copy(update={"profiled_steps": 5})},
            "the record has 4 profiled steps of a rank, expected 5",
        ),
        (
            {"ranks": [rank | {"gpu_conditions": [None]} for rank in ranks_with(METER, METER)]},
            "rank 1: nothing is recorded of its GPU's clocks and throttling",
        ),
        (
            {
                "work": {pid: [(0.5, 1.0, 35.0, GEMM), (0.8, 35.0, 36.0, ALL_REDUCE)] for pid in (PID, OTHER)},
                "scenario": "overlap",
            },
            "no communication is overlapped by computing",
        ),
        (
            {"p": P.model_copy(update={"binding": "numa"})},
            "rank 0: nothing is recorded of its binding; rank 1: nothing is recorded of its binding",
        ),
        ({"profiler": {"used": "nsys", "trace_missing": "the report is empty"}}, "no trace: the report is empty"),
        ({"outcome": "failed", "reason": {"code": "exit_code", "rank": 1}}, "rank 1"),
        ({"scenario": OUT_OF_MEMORY}, "expected out_of_memory; nothing failed"),
        (OF_LLM, "the memory estimate is 0."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
@pytest.mark.slow
def test_whatever_is_wrong_with_a_run_fails_it_and_is_said(
    changes: dict[str, Any], remark: str, tmp_path: Path
) -> None:
    row = judged(tmp_path, **changes)
    assert row["result"] == "FAILED"
    assert remark in row["remarks"]


def test_the_rank_that_lacked_memory_must_be_the_one_that_ran_out_of_it(tmp_path: Path) -> None:
    for rank, result in ((1, "passed"), (0, "FAILED")):
        reason = {"code": "out_of_memory", "rank": rank, "message": "CUDA out of memory."}
        row = judged(tmp_path / str(rank), outcome="out_of_memory", reason=reason, scenario=OUT_OF_MEMORY)
        assert row["result"] == result


def bound_to(cpus: str, note: str) -> dict[str, Any]:
    return {"cpus": cpus, "numa_nodes": [0], "note": note}


@pytest.mark.parametrize(
    ("binding", "faults"),
    [
        (bound_to("0-3", "bound to CPUs 0-3 of NUMA node 0"), []),
        (bound_to("0-7", "not bound: the machine has one NUMA node"), []),
        (
            bound_to("0-7", "not bound: the NUMA node of the GPU at 0000:3b:00.0 is unknown"),
            ["rank 1: not bound: the NUMA node of the GPU at 0000:3b:00.0 is unknown"],
        ),
        (
            bound_to("0-7", "bound to CPUs 0-3 of NUMA node 0"),
            ["rank 1: bound to CPUs 0-3 of NUMA node 0; but it may use CPUs 0-7"],
        ),
        (None, ["rank 1: nothing is recorded of its binding"]),
    ],
)
def test_ranks_must_be_bound_next_to_their_gpus(binding: dict[str, Any] | None, faults: list[str]) -> None:
    first = {
        "rank": 0,
        "binding": bound_to("4-7", "bound to CPUs 4-7 of NUMA node 1"),
    }
    assert binding_faults([first, {"rank": 1, "binding": binding}]) == faults


def plan_of(p: VisionParameters, runs: Path, devices: list[int], name: str = "strategies") -> Matrix:
    """An experiment of one scenario, whose results are beside its runs."""
    fixed = {name: value for name, value in p.stated().items() if name != "devices"}
    scenario = {"question": "?", "fixed": fixed, "vary": {"devices": devices}, "figures": ["step_breakdown"]}
    return Matrix.plan(check({"results": str(runs.parent), "scenarios": {name: scenario}}, "test"))


@pytest.mark.slow
def test_a_damaged_table_fails_the_run_that_it_is_of(tmp_path: Path) -> None:
    runs, matrix = tmp_path / "runs", plan_of(P, tmp_path / "runs", [2, 4])
    [two, four] = matrix.scenarios["strategies"]
    for run in (two, four):
        judged(runs / run.id, run.parameters, versions={}, hardware=None)
    damaged = runs / two.id / "activity" / "collectives.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    rows = judge_all(replace(matrix, reasons=dict.fromkeys(matrix.reasons)))
    assert rows["result"].tolist() == ["FAILED", "FAILED"]  # the second one for its GPUs: the trace is of two
    assert str(damaged) in rows["remarks"][0]
    assert "kernels on 2 GPUs, expected 4" in rows["remarks"][1]
    with pytest.raises(UserError, match="collectives"):
        leave(tmp_path / "send", rows, matrix)
    assert pd.read_csv(tmp_path / "send" / "check.csv")["result"].tolist() == ["FAILED", "FAILED"]


@pytest.mark.slow
def test_what_is_to_be_sent_holds_the_table_and_the_archive_and_names_no_host(tmp_path: Path) -> None:
    runs = tmp_path / "results" / "runs"
    judged(runs / run_id(P), host={"name": "a-host-of-somebody"}, versions={"torch": "2.11.0"}, hardware={"gpus": []})
    damaged = runs / run_id(P.model_copy(update={"devices": 4}))
    damaged.mkdir()
    (damaged / "run.json").write_text("{}")
    matrix = plan_of(P, runs, [1, 2, 4])
    reasons = dict.fromkeys(matrix.reasons) | {matrix.scenarios["strategies"][0].id: "needs a CUDA GPU, none found"}
    table = judge_all(replace(matrix, reasons=reasons))
    assert table["result"].tolist() == ["not run", "passed", "FAILED"]
    table.loc[2, "remarks"] += " on a-host-of-somebody"
    leave(tmp_path / "send", table, matrix)
    assert {path.name for path in (tmp_path / "send").iterdir()} == {"check.md", "check.csv", "runs.tar.gz"}
    assert pd.read_csv(tmp_path / "send" / "check.csv")["run"].tolist() == table["run"].tolist()
    text = (tmp_path / "send" / "check.md").read_text()
    assert "1 passed" in text and "torch 2.11.0" in text
    assert "somebody" not in text and str(tmp_path) not in text


@pytest.mark.parametrize(
    ("built", "result", "archived", "tests", "code"),
    [
        (True, "passed", True, 0, 0),
        (True, "not run", True, 0, 0),
        (False, "passed", True, 0, 1),
        (True, "FAILED", True, 0, 1),
        (True, "passed", False, 0, 1),
        (True, "not yet", False, 0, 0),
        (True, "passed", True, 1, 1),
    ],
)
def test_the_check_ends_with_0_only_where_nothing_failed(
    built: bool, result: str, archived: bool, tests: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(folder: Path, *_: Any) -> None:
        folder.mkdir()
        if not archived:
            raise UserError("run.json: damaged")

    matrix = plan_of(P, tmp_path / "runs", [2])
    table = pd.DataFrame([{"scenario": "strategies", "run": "r", "result": result, "remarks": ""}])
    monkeypatch.setattr(sys, "argv", ["check.py"])
    monkeypatch.setattr(gpu_check, "plan", lambda _: matrix)
    monkeypatch.setattr(gpu_check, "snakemake", lambda *_: built)
    monkeypatch.setattr(gpu_check, "judge_all", lambda *_, **__: table)
    monkeypatch.setattr(gpu_check, "leave", leave)
    monkeypatch.setattr(gpu_check.Deadline, "run", lambda *_: tests)
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == code


@pytest.mark.parametrize("done", [False, True])
def test_the_last_gpu_is_occupied_while_a_rank_is_to_lack_memory_and_never_again(
    done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[Any] = []

    @contextmanager
    def occupied(gpu: int, _spared_mib: int) -> Iterator[None]:
        happened.append(f"occupied {gpu}")
        yield
        happened.append("free")

    matrix = plan_of(P, tmp_path / "runs", [2], OUT_OF_MEMORY)
    [run] = matrix.scenarios[OUT_OF_MEMORY]
    folder = tmp_path / "runs" / run.id
    if done:
        write_json(folder / "run.json", {})
    monkeypatch.setattr(sys, "argv", ["check.py", "--no-tests"])
    monkeypatch.setattr(gpu_check, "plan", lambda _: replace(matrix, reasons=dict.fromkeys(matrix.reasons)))
    monkeypatch.setattr(gpu_check, "occupied", occupied)
    monkeypatch.setattr(gpu_check, "snakemake", lambda _deadline, _config, *targets: happened.append(targets) or True)
    monkeypatch.setattr(gpu_check, "leave", lambda folder, *_: folder.mkdir())
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 1  # the run left nothing, or a record without anything in it
    tables = (folder / TABLES,)
    assert happened == [*([tables] if done else ["occupied 1", tables, "free"]), ()]


def test_what_runs_on_one_gpu_comes_first_and_memory_is_occupied_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"results": str(tmp_path), "fixed": {"strategy": "ddp-ds"}, "scenarios": {}}
    for name, vary in (
        ("first", {"devices": [1, 2]}),
        (OUT_OF_MEMORY, {"devices": [1, 2]}),
        ("last", {"devices": [1, 2]}),
        (EVENTS_TRACED, {"devices": [2]}),
    ):
        size = 16 + len(config["scenarios"])
        own = {"question": "?", "fixed": {"image_size": size}, "vary": vary, "figures": ["step_breakdown"]}
        config["scenarios"][name] = own
    matrix = Matrix.plan(check(config, "test"))
    matrix = replace(matrix, reasons=dict.fromkeys(matrix.reasons))
    named = {run.id: f"{name} {run.parameters.devices}" for name, runs in matrix.scenarios.items() for run in runs}
    found = [(what, [named[run] for run in runs]) for what, runs in stretches(matrix, list(matrix.runs))]
    assert found == [
        ((None, 1), ["first 1"]),
        ((OUT_OF_MEMORY, 1), [f"{OUT_OF_MEMORY} 1"]),
        ((None, 1), ["last 1"]),
        ((None, 2), ["first 2"]),
        ((OUT_OF_MEMORY, 2), [f"{OUT_OF_MEMORY} 2"]),
        ((None, 2), ["last 2"]),
        ((EVENTS_TRACED, 2), [f"{EVENTS_TRACED} 2"]),
    ]
    # Of a run that has ended only the trace is left to read.
    assert [what for what, _ in stretches(matrix, [])] == [(None, 1), (None, 2)]


def test_events_are_traced_only_around_their_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "nsys"
    real.write_text('#!/bin/sh\necho "$@"\n')
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = ["nsys", "profile", "--cuda-event-trace=false", "a b"]
    said = []
    for scenario in ("overlap", EVENTS_TRACED, "overlap"):
        with around(scenario, 2, 0):
            said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    assert said == [f"profile --cuda-event-trace={traced} a b" for traced in ("false", "true", "false")]


def test_several_gpus_must_show_the_collectives_of_their_strategy() -> None:
    sharded = {"all_gather", "reduce_scatter"}
    for strategy, kinds in (("dp", {"broadcast"}), ("ddp", {"all_reduce"}), ("fsdp", sharded)):
        assert required_collectives(VisionParameters(strategy=strategy, devices=2)) == kinds
    assert required_collectives(VisionParameters(strategy="fsdp", devices=1)) == set()
    assert required_collectives(LlmParameters(technique="lora", devices=2)) == sharded
    assert required_collectives(ScriptParameters(command=("train.py",), devices=2)) == {"all_reduce"}


def on_four_gpus(*files: Path) -> dict[str, list[Run]]:
    """The runs of each scenario that a node with four GPUs can run."""
    config: dict[str, Any] = {}
    for file in files:
        update_config(config, read_yaml(file))
    node = Machine(cpus=16, gpus=4, compiler=True, dali=True, weights_needed=False)
    runs = expand(check(config, "test", outside=False))
    return {name: [run for run in own if run.unsupported_reason(node) is None] for name, own in runs.items()}


def test_every_strategy_and_technique_runs_on_one_two_and_four_gpus() -> None:
    runs = on_four_gpus(CONFIG)
    found = {(run.parameters.strategy, run.parameters.devices) for run in runs["strategies"]}
    possible = {
        (name, devices)
        for name, strategy in STRATEGIES.items()
        for devices in (1, 2, 4)
        if strategy.unsupported_reason(VisionParameters(strategy=name, devices=devices)) is None
    }
    assert found == possible
    tuned = {(run.parameters.technique, run.parameters.devices) for run in runs["techniques"]}
    assert tuned == {(name, devices) for name in TECHNIQUES for devices in (1, 2, 4)}
    assert not any(run.parameters.packed for run in runs["techniques"])


def test_four_gpus_are_checked_within_forty_minutes_by_the_estimate() -> None:
    assert check(read_yaml(CONFIG), "test", outside=False).time_limit_min >= 10  # of a run that compiles on few cores
    runs = distinct(on_four_gpus(CONFIG)).values()
    assert estimated_s(run.parameters for run in runs) <= 40 * 60


def test_every_question_that_only_a_gpu_decides_has_a_scenario() -> None:
    page = (CONFIG.parents[1] / "docs" / "validation.md").read_text(encoding="utf-8")
    listed = page.partition("### What only a real GPU decides")[2].partition("\n#")[0]
    rows = [line.split("|")[2] for line in listed.splitlines() if line.startswith("| ")][1:]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(rows) >= 8 and all("`" in row for row in rows)
    assert {*OF_SCENARIO, OUT_OF_MEMORY, EVENTS_TRACED} <= named <= on_four_gpus(CONFIG).keys()
