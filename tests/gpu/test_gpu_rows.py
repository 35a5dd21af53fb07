"""The GPU check judges runs of known truth; its configuration has all strategies and techniques, in 40 minutes."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import check as gpu_check
import pandas as pd
import pytest
from check import CONFIG, OUT_OF_MEMORY, estimated_s, judge_all, leave
from rows import binding_faults, estimate_faults, judge, required_collectives
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
P = VisionParameters(strategy="ddp-ds", devices=2, epochs=1, batch_size=4, profiled_steps=4)


def ranks_with(first: dict[str, Any], second: dict[str, Any], pid: int = OTHER) -> list[dict[str, Any]]:
    """The record's ranks with these meters; the trace has the process of the second one as `OTHER`."""
    return [{"rank": 0, "pid": PID, "energy": [first]}, {"rank": 1, "pid": pid, "energy": [second]}]


def judged(
    folder: Path,
    p: JobParameters = P,
    work: dict[int, Any] | None = None,
    marks: dict[int, Any] | None = None,
    longer: float = 1.0,
    meter: dict[str, Any] = METER,
    runs_out_of_memory: bool = False,
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
    return judge(Run(run_id(p), p), folder, runs_out_of_memory)


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
            {"p": P.model_copy(update={"binding": "numa"})},
            "rank 0: nothing is recorded of its binding; rank 1: nothing is recorded of its binding",
        ),
        ({"profiler": {"used": "nsys", "trace_missing": "the report is empty"}}, "no trace: the report is empty"),
        ({"outcome": "failed", "reason": {"code": "exit_code", "rank": 1}}, "rank 1"),
        ({"runs_out_of_memory": True}, "expected out_of_memory; nothing failed"),
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
        row = judged(tmp_path / str(rank), outcome="out_of_memory", reason=reason, runs_out_of_memory=True)
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
    record = tmp_path / "runs" / run.id / "run.json"
    if done:
        write_json(record, {})
    monkeypatch.setattr(sys, "argv", ["check.py", "--no-tests"])
    monkeypatch.setattr(gpu_check, "plan", lambda _: replace(matrix, reasons=dict.fromkeys(matrix.reasons)))
    monkeypatch.setattr(gpu_check, "occupied", occupied)
    monkeypatch.setattr(gpu_check, "snakemake", lambda _deadline, _config, *targets: happened.append(targets) or True)
    monkeypatch.setattr(gpu_check, "leave", lambda folder, *_: folder.mkdir())
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 1  # the run left nothing, or a record without anything in it
    assert happened == ([()] if done else ["occupied 1", (record,), "free", ()])


def test_several_gpus_must_show_the_collectives_of_their_strategy() -> None:
    sharded = {"all_gather", "reduce_scatter"}
    for strategy, kinds in (("dp", {"broadcast"}), ("ddp", {"all_reduce"}), ("fsdp", sharded)):
        assert required_collectives(VisionParameters(strategy=strategy, devices=2)) == kinds
    assert required_collectives(VisionParameters(strategy="fsdp", devices=1)) == set()
    assert required_collectives(LlmParameters(technique="lora", devices=2)) == sharded


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
