"""The GPU check judges runs of known truth."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from judged_runs import ALL_REDUCE, CONDITIONS, GEMM, HOST, METER, WORK, P, judged, ranks_with
from rows import (
    OF_SCENARIO,
    OUT_OF_MEMORY,
    binding_faults,
    estimate_faults,
    largest_part,
    power_and_conditions,
    step_quotients,
)

from factories import make_run
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.script.parameters import ScriptParameters
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.record import GpuConditions, RankRecord
from synthetic import OTHER, PID

# Of a small language model, whose estimate is far below the peak that the steps above state.
OF_LLM: dict[str, Any] = {
    "p": LlmParameters(library="torchtune", devices=2, sequence_length=16, profiled_steps=4),
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
        self._rows, self.record = rows, make_run(**record)

    def has_activity(self, _name: str) -> bool:
        """Whether rows were stated."""
        return self._rows is not None

    def activity(self, _name: str, columns: list[str]) -> pa.Table:
        """The rows."""
        return pa.table(pd.DataFrame(self._rows, columns=columns))


LOADS = PRODUCT.model_copy(update={"args": {"edges": EDGE, "load_ms": 30}})
OF_LOADING = {"largest_part": "data loading"}
LARGEST = "the largest part of a step is"
COPIES = [
    {"operation": "host_to_device", "host_memory": "pageable", "bytes": 8},
    {"operation": "host_to_device", "host_memory": "pinned", "bytes": 800},
    {"operation": "device_to_host", "host_memory": "pageable", "bytes": 8000},
]
PINS, PAGES = VisionParameters(pin_memory=True), VisionParameters(pin_memory=False)
COPIED = "most bytes are copied from"
EMULATED, REAL = False, True


@pytest.mark.parametrize(
    ("scenario", "p", "row", "files", "is_real", "faults"),
    [
        ("loading", LOADS, OF_LOADING, Files(), REAL, []),
        ("loading", PRODUCT, {"largest_part": "compute"}, Files(), REAL, []),
        ("loading", LOADS, {"largest_part": "compute"}, Files(), REAL, [f"{LARGEST} compute, expected data loading"]),
        ("loading", PRODUCT, {"largest_part": None}, Files(), REAL, [f"{LARGEST} None, expected compute"]),
        ("loading", PRODUCT, {"largest_part": "stalls"}, Files(), REAL, [f"{LARGEST} stalls, expected compute"]),
        ("loading", PRODUCT, {"largest_part": "stalls"}, Files(), EMULATED, []),
        ("loading", PRODUCT, OF_LOADING, Files(), EMULATED, [f"{LARGEST} data loading, expected compute"]),
        ("loading", PRODUCT, {"largest_part": None}, Files(), EMULATED, [f"{LARGEST} None, expected compute"]),
        ("pinned", PINS, {}, Files(COPIES), REAL, []),
        ("pinned", PAGES, {}, Files(COPIES), REAL, [f"{COPIED} pinned memory, expected pageable"]),
        ("pinned", PAGES, {}, Files(COPIES[:1]), REAL, []),
        ("pinned", PINS, {}, Files(COPIES[:1]), REAL, [f"{COPIED} pageable memory, expected pinned"]),
        ("pinned", PINS, {}, Files([]), REAL, [f"{COPIED} no known memory, expected pinned"]),
        ("overlap", P, {"overlapped_share": 0.4}, Files(), REAL, []),
        ("overlap", P, {"overlapped_share": 0.0}, Files(), REAL, ["no communication is overlapped by computing"]),
        ("overlap", P, {"overlapped_share": 0.0}, Files(), EMULATED, []),
        ("script", P, {"last_measured_steps": 1.1}, Files(), REAL, []),
        ("script", P, {"last_measured_steps": 2.0}, Files(), EMULATED, []),
        ("script", P, {"last_measured_steps": 2.0}, Files(), REAL,
         ["the last measured steps to the first is 2, expected 0.8 to 1.25"]),
    ],
)  # fmt: skip
def test_a_scenario_must_show_what_it_is_for(
    scenario: str, p: Any, row: dict[str, Any], files: Files, is_real: bool, faults: list[str]
) -> None:
    assert OF_SCENARIO[scenario](p, row, files, is_real) == faults


def test_the_largest_part_of_a_step_is_that_with_the_largest_share() -> None:
    assert largest_part({"data_loading_share": 0.6, "compute_share": 0.4}) == "data loading"
    assert largest_part({}) is None


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
    files = Files(ranks=[{"rank": 0, "gpu_conditions": [CONDITIONS]}])
    assert OF_SCENARIO["matrix_product"](PRODUCT, SEEN | changes, files, is_real) == faults


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
        ({20_000: 30e-6, 2_000_000: 30e-6}, True, ["bandwidth_bytes_per_s is not known, expected 5e+08 to 1e+12"]),
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


def test_steps_are_compared_by_the_slowest_rank() -> None:
    seconds = [1.0] * 10 + [2.0] * 10 + [6.0, 2.0, 4.0, 3.0]
    windows = ["measured"] * 20 + ["profiled"] * 4
    steps = pd.DataFrame({"step": range(24), "window": windows, "duration_s": seconds})
    both = pd.concat([steps, steps.assign(duration_s=0.5)])
    assert step_quotients(both) == {"first_profiled_step": 6 / 3, "last_measured_steps": 2.0}


def test_what_the_launcher_sampled_must_tell_clocks_and_throttling() -> None:
    [first, second] = map(RankRecord.from_values, ranks_with(METER, METER))
    assert power_and_conditions([first, second]) == (pytest.approx(30.0), [])
    nothing = GpuConditions.from_values(CONDITIONS | {"clock_reasons": None})
    unknown = second.model_copy(update={"energy": (), "gpu_conditions": (nothing,)})
    assert power_and_conditions([first, unknown]) == (
        pytest.approx(30.0),
        ["rank 1: nothing is recorded of its GPU's throttling"],
    )
    assert power_and_conditions([RankRecord(rank=0)]) == (
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
        ({"p": P.model_copy(update={"profiled_steps": 5})}, "the record has 4 profiled steps of a rank, expected 5"),
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
    ranks = [bound_to("4-7", "bound to CPUs 4-7 of NUMA node 1"), binding]
    records = [RankRecord.from_values({"rank": rank, "binding": own}) for rank, own in enumerate(ranks)]
    assert binding_faults(records) == faults
