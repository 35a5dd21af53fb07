"""The GPU check runs what is planned, in time and from what it saved; it has all strategies and techniques."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import check as gpu_check
import pandas as pd
import psutil
import pytest
from check import CONFIG, TABLES, around, estimated_s, judge_all, leave, stretches
from judged_runs import P, judged
from pieces import ENDING_S, PART_BYTES, Deadline, restore, save
from rows import EVENTS_TRACED, OF_SCENARIO, OUT_OF_MEMORY, required_collectives
from snakemake.utils import update_config

from conftest import ran
from machine.faked_programs import put
from multicard.config.load import check, read_yaml
from multicard.config.plan import Plan
from multicard.config.runs import Run, distinct, expand
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.programs.machine import Machine
from multicard.programs.script.parameters import ScriptParameters
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.strategies import STRATEGIES
from multicard.runs.parameters import run_id


def plan_of(p: VisionParameters, runs: Path, devices: list[int], name: str = "strategies") -> Plan:
    """An experiment of one scenario, whose results are beside its runs."""
    fixed = {name: value for name, value in p.stated().items() if name != "devices"}
    scenario = {"question": "?", "fixed": fixed, "vary": {"devices": devices}, "figures": ["step_breakdown"]}
    return Plan.make(check({"results": str(runs.parent), "scenarios": {name: scenario}}, "test"))


@pytest.mark.slow
def test_a_damaged_table_fails_the_run_that_it_is_of(tmp_path: Path) -> None:
    runs, plan = tmp_path / "runs", plan_of(P, tmp_path / "runs", [2, 4])
    [two, four] = plan.scenarios["strategies"]
    for run in (two, four):
        judged(runs / run.id, run.parameters, versions={}, hardware=None)
    damaged = runs / two.id / "activity" / "collectives.parquet"
    damaged.write_bytes(damaged.read_bytes()[:100])
    rows = judge_all(replace(plan, reasons=dict.fromkeys(plan.reasons)))
    assert rows["result"].tolist() == ["FAILED", "FAILED"]  # the second one for its GPUs: the trace is of two
    assert str(damaged) in rows["remarks"][0]
    assert "kernels on 2 GPUs, expected 4" in rows["remarks"][1]
    with pytest.raises(UserError, match="collectives"):
        leave(tmp_path / "send", rows, plan)
    assert pd.read_csv(tmp_path / "send" / "check.csv")["result"].tolist() == ["FAILED", "FAILED"]


@pytest.mark.slow
def test_what_is_to_be_sent_holds_the_table_and_the_archive_and_names_no_host(tmp_path: Path) -> None:
    runs = tmp_path / "results" / "runs"
    judged(runs / run_id(P), host={"name": "a-host-of-somebody"}, versions={"torch": "2.11.0"}, hardware={"gpus": []})
    damaged = runs / run_id(P.model_copy(update={"devices": 4}))
    damaged.mkdir()
    (damaged / "run.json").write_text("{}")
    plan = plan_of(P, runs, [1, 2, 4])
    reasons = dict.fromkeys(plan.reasons) | {plan.scenarios["strategies"][0].id: "needs a CUDA GPU, none found"}
    table = judge_all(replace(plan, reasons=reasons))
    assert table["result"].tolist() == ["not run", "passed", "FAILED"]
    table.loc[2, "remarks"] += " on a-host-of-somebody"
    leave(tmp_path / "send", table, plan)
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

    plan = plan_of(P, tmp_path / "runs", [2])
    table = pd.DataFrame([{"scenario": "strategies", "run": "r", "result": result, "remarks": ""}])
    monkeypatch.setattr(sys, "argv", ["check.py"])
    monkeypatch.setattr(gpu_check, "planned", lambda _: plan)
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

    plan = plan_of(P, tmp_path / "runs", [2], OUT_OF_MEMORY)
    [run] = plan.scenarios[OUT_OF_MEMORY]
    folder = tmp_path / "runs" / run.id
    if done:
        write_json(folder / "run.json", {})
    monkeypatch.setattr(sys, "argv", ["check.py", "--no-tests"])
    monkeypatch.setattr(gpu_check, "planned", lambda _: replace(plan, reasons=dict.fromkeys(plan.reasons)))
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
    plan = Plan.make(check(config, "test"))
    plan = replace(plan, reasons=dict.fromkeys(plan.reasons))
    named = {run.id: f"{name} {run.parameters.devices}" for name, runs in plan.scenarios.items() for run in runs}
    found = [(what, [named[run] for run in runs]) for what, runs in stretches(plan, list(plan.runs))]
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
    assert [what for what, _ in stretches(plan, [])] == [(None, 1), (None, 2)]


def test_events_are_traced_only_around_their_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "nsys", 'echo "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = ["nsys", "profile", "--cuda-event-trace=false", "a b"]
    said = []
    for scenario in ("overlap", EVENTS_TRACED, "overlap"):
        with around(scenario, 2, 0):
            said.append(ran(*command).stdout.strip())
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


SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_what_is_saved_in_parts_is_restored_without_traces_and_runs_that_are_there_stay(tmp_path: Path) -> None:
    saved, elsewhere = tmp_path / "saved", tmp_path / "elsewhere"
    for name in ("a", "b", "unread", "unfinished"):
        for part, content in (
            *([] if name == "unread" else [("activity/tables.json", b"{}")]),
            ("trace/captured.json", b"{}"),
            ("trace/rank0.json.gz", b"long"),
            ("steps.csv", os.urandom(PART_BYTES if name == "a" else 10)),
        ):
            file = tmp_path / "results/runs" / name / part
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        if name != "unfinished":
            (tmp_path / "results/runs" / name / "run.json").write_text(name)
    os.utime(tmp_path / "results/runs/a/run.json", (1e9, 1e9))
    (elsewhere / "runs/b").mkdir(parents=True)
    restore(saved, elsewhere)  # of the first call there is nothing

    save(tmp_path / "results", saved)
    save(tmp_path / "results", saved)
    assert len(list(saved.iterdir())) == 2
    assert max(part.stat().st_size for part in saved.iterdir()) == PART_BYTES
    restore(saved, elsewhere)
    assert sorted(path.name for path in elsewhere.glob("runs/*")) == ["a", "b", "unread"]
    assert (elsewhere / "runs/unread/trace/rank0.json.gz").read_bytes() == b"long"
    assert list((elsewhere / "runs/b").iterdir()) == []
    assert {path.name for path in (elsewhere / "runs/a").rglob("*.*")} == {
        "tables.json", "captured.json", "steps.csv", "run.json",
    }  # fmt: skip
    for file in ("steps.csv", "run.json"):
        assert (elsewhere / "runs/a" / file).read_bytes() == (tmp_path / "results/runs/a" / file).read_bytes()
    assert (elsewhere / "runs/a/run.json").stat().st_mtime == 1e9, "by which Snakemake tells what is out of date"


@pytest.mark.parametrize("minutes", [0.0, (ENDING_S + 0.5) / 60])
def test_a_command_is_ended_or_not_begun_when_the_time_is_up(minutes: float, tmp_path: Path) -> None:
    deadline = Deadline(minutes)
    assert deadline.run(SLEEP, tmp_path) is None
    assert deadline.left_s == 0


def test_what_does_not_end_in_time_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pieces.STOPPING_S", 0.2)
    stubborn = 'trap "" TERM; sleep 600 & echo $! > child; wait; wait'
    assert Deadline((ENDING_S + 0.5) / 60).run(["sh", "-c", stubborn], tmp_path) is None
    child = int((tmp_path / "child").read_text())
    with suppress(psutil.NoSuchProcess):  # or dead, and not yet waited for by what it fell to
        ended, _ = psutil.wait_procs([psutil.Process(child)], timeout=5)
        assert ended or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_without_a_limit_or_in_time_a_command_gives_its_exit_code(tmp_path: Path) -> None:
    for minutes in (None, 60):
        assert Deadline(minutes).run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path) == 3
